"""`manage.py quota list|set|remove`: how much a tenant, one of its keys, or its use of one model may use."""

from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import selectors
from tenants.contracts import QUOTA_NAMES
from tenants.models import ApiKey, Tenant
from tenants.quota_amounts import UNITS, amount_shown, amount_stored
from tenants.quotas import quota_remove, quota_set
from tenants.scoping import operator_scope
from tenants.services import TenantsError

ACTOR = "command:quota"


class Command(BaseCommand):
    help = "Set, remove and list quotas. Gateways follow within a second; every change is audited."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser("list", help="a tenant's quotas")
        setting = verbs.add_parser("set", help="bound something, or give it another bound")
        removing = verbs.add_parser("remove", help="bound it no longer")
        for verb in (listing, setting, removing):
            verb.add_argument("--tenant", required=True, help="the tenant's slug")
        for verb in (setting, removing):
            verb.add_argument("name", choices=QUOTA_NAMES, help="what is bounded")
            of = verb.add_mutually_exclusive_group()
            of.add_argument("--key", help="only of this key: the eight characters after `sk-slc-`")
            of.add_argument("--model", default="", help="only of this model: the name that requests use")
        setting.add_argument("amount", help="a count; of spend US dollars, such as 12.50")
        setting.add_argument(
            "--burst", type=int, help="of a quota per minute: how many at once after a pause"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        verbs = {"list": self._list, "set": self._set, "remove": self._remove}
        with operator_scope():
            try:
                verbs[options["verb"]](_tenant(options["tenant"]), options)
            except TenantsError as error:
                raise CommandError(str(error)) from error
            except ValidationError as error:
                raise CommandError(" ".join(error.messages)) from error

    def _list(self, tenant: Tenant, options: dict[str, Any]) -> None:
        for quota in selectors.quota_list(tenant_id=tenant.id):
            of = f"{quota.scope} {quota.subject}".strip()
            burst = f", {quota.burst:,} at once" if quota.burst else ""
            self.stdout.write(f"{quota.name:20}  {of:24}  {amount_shown(quota)} {UNITS[quota.name]}{burst}")

    def _set(self, tenant: Tenant, options: dict[str, Any]) -> None:
        quota = quota_set(
            tenant_id=tenant.id,
            name=options["name"],
            limit=amount_stored(options["name"], _number(options["amount"])),
            burst=options["burst"],
            key_id=_key_id(tenant, options["key"]),
            model=options["model"],
            actor=ACTOR,
        )
        self.stdout.write(f"{tenant.slug}: {amount_shown(quota)} {UNITS[quota.name]}")

    def _remove(self, tenant: Tenant, options: dict[str, Any]) -> None:
        key_id = _key_id(tenant, options["key"])
        asked = (options["name"], key_id, options["model"])
        quotas = selectors.quota_list(tenant_id=tenant.id)
        quota = next((quota for quota in quotas if (quota.name, quota.key_id, quota.model) == asked), None)
        if quota is None:
            raise CommandError(f"{tenant.slug} has no such quota; `quota list` shows those it has")
        quota_remove(tenant_id=tenant.id, quota_id=quota.id, actor=ACTOR)
        self.stdout.write(f"{tenant.slug}: {quota.name} is bounded no longer")


def _tenant(slug: str) -> Tenant:
    tenant = selectors.tenant_by_slug(slug)
    if tenant is None:
        raise CommandError(f"no tenant is called {slug}")
    return tenant


def _key_id(tenant: Tenant, public_id: str | None) -> UUID | None:
    if public_id is None:
        return None
    key: ApiKey | None = selectors.key_by_public_id(public_id)
    if key is None or key.tenant_id != tenant.id:
        raise CommandError(f"{tenant.slug} has no key with the public id {public_id}")
    return key.id


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise CommandError(f"{text} is not a number")
    return number
