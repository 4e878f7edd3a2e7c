"""What the gateway is told: which keys live, and the moment that changes."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from config.environment import key_pepper
from tenants import services
from tenants.contracts import KeyGrant
from tenants.grants import SNAPSHOT_CHANNEL, grants_load
from tenants.keys import key_digest
from tenants.models import Tenant
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, model_create, tenant_create


def _grants(database: Database) -> dict[UUID, KeyGrant]:
    async def load() -> list[KeyGrant]:
        async with await psycopg.AsyncConnection.connect(database.gateway_url) as conn:
            return await grants_load(conn)

    return {grant.key_id: grant for grant in asyncio.run(load())}


@pytest.fixture
def tenant(database: Database) -> Tenant:
    return tenant_create("acme", name="Acme Inc.")


def test_a_live_key_has_a_grant(database: Database, tenant: Tenant) -> None:
    issued = key_issue(tenant, allowed_models=["small", "large"])
    assert list(_grants(database).values()) == [
        KeyGrant(
            key_id=issued.key.id,
            public_id=issued.plaintext[7:15],
            digest=key_digest(key_pepper(), issued.plaintext),
            tenant_id=tenant.id,
            tenant_name="Acme Inc.",
            scopes=frozenset({"completions"}),
            models=frozenset({"small", "large"}),
            expires_at=None,
        )
    ]


def test_the_gateway_loads_the_keys_of_every_tenant(database: Database, tenant: Tenant) -> None:
    keys = {key_issue(owner).key.id for owner in (tenant, tenant_create())}
    assert set(_grants(database)) == keys


def test_a_key_without_a_list_may_use_every_model(database: Database, tenant: Tenant) -> None:
    key_issue(tenant)
    assert [grant.models for grant in _grants(database).values()] == [None]


def test_a_revoked_key_has_no_grant(database: Database, tenant: Tenant) -> None:
    kept, revoked = key_issue(tenant).key, key_issue(tenant).key
    with operator_scope():
        services.key_revoke(tenant_id=tenant.id, key_id=revoked.id, actor=ACTOR)
    assert set(_grants(database)) == {kept.id}


def test_an_expired_key_has_no_grant(database: Database, tenant: Tenant) -> None:
    now = datetime.now(UTC)
    key_issue(tenant, expires_at=now - timedelta(seconds=1))
    living = key_issue(tenant, expires_at=now + timedelta(hours=1)).key
    assert {key: grant.expires_at for key, grant in _grants(database).items()} == {
        living.id: living.expires_at
    }


def test_a_suspended_tenant_has_no_grants_until_it_is_resumed(database: Database, tenant: Tenant) -> None:
    key = key_issue(tenant).key
    other = key_issue(tenant_create()).key
    with operator_scope():
        services.tenant_suspend(tenant_id=tenant.id, actor=ACTOR)
    assert set(_grants(database)) == {other.id}
    with operator_scope():
        services.tenant_resume(tenant_id=tenant.id, actor=ACTOR)
    assert set(_grants(database)) == {key.id, other.id}


@pytest.mark.parametrize(
    ("change", "table"),
    [
        (
            lambda tenant, key: services.key_revoke(tenant_id=tenant, key_id=key, actor=ACTOR),
            "tenants_apikey",
        ),
        (lambda tenant, key: services.key_issue(tenant_id=tenant, name="n", actor=ACTOR), "tenants_apikey"),
        (lambda tenant, key: services.tenant_suspend(tenant_id=tenant, actor=ACTOR), "tenants_tenant"),
    ],
    ids=["revoke", "issue", "suspend"],
)
def test_the_gateways_hear_of_it_at_once(
    database: Database, tenant: Tenant, change: Callable[[UUID, UUID], object], table: str
) -> None:
    key = key_issue(tenant).key
    with psycopg.connect(database.gateway_url, autocommit=True) as gateway:
        gateway.execute(f"LISTEN {SNAPSHOT_CHANNEL}")
        with operator_scope():
            change(tenant.id, key.id)
        heard = [notify.payload for notify in gateway.notifies(timeout=5, stop_after=1)]
    assert heard == [table]


def test_a_change_of_routes_is_announced_too(database: Database) -> None:
    with psycopg.connect(database.gateway_url, autocommit=True) as gateway:
        gateway.execute(f"LISTEN {SNAPSHOT_CHANNEL}")
        model_create()
        assert [notify.payload for notify in gateway.notifies(timeout=5, stop_after=1)]
