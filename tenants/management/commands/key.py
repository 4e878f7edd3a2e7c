"""`manage.py key issue|revoke|list`: API keys from the command line."""

from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from tenants import selectors, services
from tenants.models import Tenant
from tenants.scoping import operator_scope

ACTOR = "command:key"


class Command(BaseCommand):
    help = "Issue, revoke and list API keys. An issued key is printed once and stored nowhere."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        issue = verbs.add_parser("issue", help="print a new key")
        issue.add_argument("--tenant", required=True, help="the tenant's slug")
        issue.add_argument("--name", default="command line", help="what people call the key")
        issue.add_argument(
            "--model", action="append", dest="models", help="allow only this model; repeatable"
        )
        issue.add_argument(
            "--expires-days", type=int, help="days until the key stops working; default: never"
        )
        revoke = verbs.add_parser("revoke", help="end a key")
        revoke.add_argument("public_id", help="the eight characters after `sk-slc-`")
        listing = verbs.add_parser("list", help="a tenant's keys, newest first")
        listing.add_argument("--tenant", required=True, help="the tenant's slug")

    def handle(self, *args: Any, **options: Any) -> None:
        verbs = {"issue": self._issue, "revoke": self._revoke, "list": self._list}
        with operator_scope():
            try:
                verbs[options["verb"]](options)
            except services.TenantsError as error:
                raise CommandError(str(error)) from error
            except ValidationError as error:
                raise CommandError(" ".join(error.messages)) from error

    def _issue(self, options: dict[str, Any]) -> None:
        days = options["expires_days"]
        issued = services.key_issue(
            tenant_id=_tenant(options["tenant"]).id,
            name=options["name"],
            actor=ACTOR,
            allowed_models=options["models"],
            expires_at=None if days is None else timezone.now() + timedelta(days=days),
        )
        self.stdout.write(issued.plaintext)

    def _revoke(self, options: dict[str, Any]) -> None:
        key = selectors.key_by_public_id(options["public_id"])
        if key is None:
            raise CommandError(f"no key has the public id {options['public_id']}")
        services.key_revoke(tenant_id=key.tenant_id, key_id=key.id, actor=ACTOR)
        self.stdout.write(f"{key.public_id} is revoked")

    def _list(self, options: dict[str, Any]) -> None:
        for key in selectors.key_list(tenant_id=_tenant(options["tenant"]).id):
            state = "revoked" if key.revoked_at else "expired" if _expired(key.expires_at) else "live"
            self.stdout.write(f"{key.public_id}  …{key.last4}  {state:7}  {key.name}")


def _expired(expires_at: Any) -> bool:
    return expires_at is not None and expires_at <= timezone.now()


def _tenant(slug: str) -> Tenant:
    tenant = selectors.tenant_by_slug(slug)
    if tenant is None:
        raise CommandError(f"no tenant is called {slug}")
    return tenant
