"""`manage.py seed --json-out PATH`: demo tenants with keys and quotas, an admin, a routed and priced model.

Running it again changes nothing and keeps the secrets of the file. A secret that is no longer in the file
cannot be read back from the database: it is replaced, and the old one stops working.
"""

import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.selectors import price_current
from billing.services import price_publish
from config.environment import key_pepper, weights_dir
from gpuworker.manifest import MANIFEST_NAME, Manifest, WeightsMismatch, manifest_load
from modelsvc.importer import DEMO_NAME, DEMO_OWNED_BY, DEMO_SLUG
from modelsvc.selectors import route_of
from modelsvc.services import RegistryError, route_switch, version_publish
from tenants import accounts, quotas, selectors, services
from tenants.keys import key_digest
from tenants.models import ApiKey, Tenant, User
from tenants.scoping import operator_scope

ACTOR = "command:seed"
TENANTS = ("acme", "globex", "initech")
KEY_NAME = "demo"
ADMIN = "admin"
QUOTAS = {  # wide enough for every demonstration: they are there to be seen
    "tokens_per_minute": 20_000_000,
    "requests_per_minute": 60_000,
    "concurrent_requests": 20_000,
    "spend_per_day": 1_000_000_000,  # $1,000
    "spend_per_month": 10_000_000_000,
}
PRICE_MICRO_USD_PER_MTOK = {"prompt": 150_000, "cached": 75_000, "output": 600_000}


class Command(BaseCommand):
    help = "Create the demo tenants with API keys and quotas, an admin, and the demo model's route and price."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json-out", type=Path, required=True, help="file that keeps the demo's secrets")
        parser.add_argument("--digest", help="weights to route to; default: the only ones in the store")
        parser.add_argument("--slug", default=DEMO_SLUG, help="the name requests use for the model")
        parser.add_argument("--name", help="the name people read; default: the demo model's, or the slug")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["json_out"]
        kept = _secrets_read(path)
        with operator_scope():
            _model_ensure(options["slug"], options["name"], options["digest"])
            keys = {slug: _tenant_ensure(slug, _kept_key(kept, slug)) for slug in TENANTS}
            password = _admin_ensure(kept.get("admin", {}).get("password"))
        seeded = {
            "api_key": keys[TENANTS[0]],
            "model": options["slug"],
            "tenants": [{"name": slug, "api_key": key} for slug, key in keys.items()],
            "admin": {"username": ADMIN, "password": password},
        }
        _secrets_write(path, {**kept, **seeded})


def _model_ensure(slug: str, name: str | None, digest: str | None) -> None:
    """A route once made is an operator's to change: it is left as it is unless a digest is asked for."""
    if digest is not None or route_of(slug) is None:
        manifest = _manifest(digest)
        is_demo = slug == DEMO_SLUG
        try:
            version_publish(
                slug=slug,
                name=name or (DEMO_NAME if is_demo else slug),
                owned_by=DEMO_OWNED_BY if is_demo else "unknown",
                manifest=manifest,
                actor=ACTOR,
            )
            route_switch(slug=slug, digest=manifest.digest, actor=ACTOR)
        except RegistryError as error:
            raise CommandError(str(error)) from error
    if price_current(model=slug, at=timezone.now()) is None:
        price_publish(
            model=slug,
            prompt_micro_usd_per_mtok=PRICE_MICRO_USD_PER_MTOK["prompt"],
            cached_micro_usd_per_mtok=PRICE_MICRO_USD_PER_MTOK["cached"],
            output_micro_usd_per_mtok=PRICE_MICRO_USD_PER_MTOK["output"],
            actor=ACTOR,
        )


def _manifest(digest: str | None) -> Manifest:
    store = weights_dir()
    # Not `*`: an import that was killed leaves hidden folders.
    found = (
        [digest] if digest else sorted(path.parent.name for path in store.glob(f"[0-9a-f]*/{MANIFEST_NAME}"))
    )
    if len(found) != 1:
        raise CommandError(
            f"{store} holds {len(found)} models: "
            + ("pass --digest to choose one" if found else "run `manage.py model_import` first")
        )
    try:
        return manifest_load(store / found[0])
    except WeightsMismatch as error:
        raise CommandError(str(error)) from error


def _tenant_ensure(slug: str, plaintext: str | None) -> str:
    """The tenant's demo key: the kept one while it works, else a new one in place of the earlier ones.

    Quotas once set are an operator's to change: a tenant that has one is left as it is.
    """
    tenant = selectors.tenant_by_slug(slug)
    if tenant is None:
        tenant = services.tenant_create(slug=slug, name=slug, actor=ACTOR)
    if not selectors.quota_list(tenant_id=tenant.id):
        for quota, limit in QUOTAS.items():
            quotas.quota_set(tenant_id=tenant.id, name=quota, limit=limit, actor=ACTOR)
    keys = selectors.key_list(tenant_id=tenant.id)
    live = [key for key in keys if key.name == KEY_NAME and key.revoked_at is None]
    if plaintext is not None and _is_issued(plaintext, live):
        return plaintext
    return _key_replace(tenant, live)


def _is_issued(plaintext: str, live: list[ApiKey]) -> bool:
    digest = key_digest(key_pepper(), plaintext)
    return any(bytes(key.digest) == digest for key in live)


def _key_replace(tenant: Tenant, live: list[ApiKey]) -> str:
    for key in live:
        services.key_revoke(tenant_id=tenant.id, key_id=key.id, actor=ACTOR, reason="its plaintext was lost")
    return services.key_issue(tenant_id=tenant.id, name=KEY_NAME, actor=ACTOR).plaintext


def _admin_ensure(password: str | None) -> str:
    """A kept password is left alone, even if the admin has changed it since."""
    user = User.objects.filter(username=ADMIN).first()
    if user is not None and password is not None:
        return password
    password = secrets.token_urlsafe(18)
    if user is None:
        accounts.superuser_create(username=ADMIN, password=password, actor=ACTOR)
    else:
        accounts.password_set(user=user, password=password, actor=ACTOR)
    return password


def _kept_key(kept: dict[str, Any], slug: str) -> str | None:
    for tenant in kept.get("tenants", []):
        if tenant.get("name") == slug:
            key: str | None = tenant.get("api_key")
            return key
    return None


def _secrets_read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CommandError(f"{path} is not JSON ({error}): delete it to get new keys") from error
    if not isinstance(kept, dict):
        raise CommandError(f"{path} holds no JSON object: delete it to get new keys")
    return kept


def _secrets_write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, and readable by the owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    part = Path(name)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
