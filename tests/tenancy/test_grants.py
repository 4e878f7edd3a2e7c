"""What the gateway is told: which keys live, and the moment that changes."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from config.environment import key_pepper, master_keys
from tenants import services
from tenants.contracts import KeyGrant
from tenants.data_keys import DataKeyUnreadable
from tenants.grants import SNAPSHOT_CHANNEL, grants_load
from tenants.keys import key_digest
from tenants.models import Tenant
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, model_create, tenant_create


def _grants(database: Database, keys: Sequence[bytes] | None = None) -> dict[UUID, KeyGrant]:
    async def load() -> list[KeyGrant]:
        async with await psycopg.AsyncConnection.connect(database.gateway_url) as conn:
            return await grants_load(conn, keys or master_keys())

    return {grant.key_id: grant for grant in asyncio.run(load())}


@pytest.fixture
def tenant(database: Database) -> Tenant:
    return tenant_create("acme", name="Acme Inc.")


def test_a_live_key_has_a_grant(database: Database, tenant: Tenant) -> None:
    issued = key_issue(tenant, allowed_models=["small", "large"])
    [grant] = _grants(database).values()
    assert len(grant.data_key) == 32
    assert [grant] == [
        KeyGrant(
            key_id=issued.key.id,
            public_id=issued.plaintext[7:15],
            digest=key_digest(key_pepper(), issued.plaintext),
            tenant_id=tenant.id,
            tenant_name="Acme Inc.",
            scopes=frozenset({"completions"}),
            models=frozenset({"small", "large"}),
            expires_at=None,
            data_key=grant.data_key,
            zero_retention=False,
            max_output_tokens=None,
            max_open_requests=None,
        )
    ]


def test_the_gateway_loads_the_keys_of_every_tenant(database: Database, tenant: Tenant) -> None:
    keys = {key_issue(owner).key.id for owner in (tenant, tenant_create())}
    assert set(_grants(database)) == keys


def test_a_key_without_a_list_may_use_every_model(database: Database, tenant: Tenant) -> None:
    key_issue(tenant)
    assert [grant.models for grant in _grants(database).values()] == [None]


def test_what_a_tenant_and_a_key_may_do_reaches_the_gateway(database: Database, tenant: Tenant) -> None:
    one, other = key_issue(tenant).key, key_issue(tenant).key
    with operator_scope():
        services.tenant_settings_set(
            tenant_id=tenant.id,
            zero_retention=True,
            max_output_tokens=500,
            continues_streams=True,
            actor=ACTOR,
        )
        services.key_limit_set(tenant_id=tenant.id, key_id=one.id, max_open_requests=3, actor=ACTOR)
    grants = _grants(database)
    for grant in grants.values():
        assert (grant.zero_retention, grant.max_output_tokens, grant.continues_streams) == (True, 500, True)
    assert {key: grant.max_open_requests for key, grant in grants.items()} == {one.id: 3, other.id: None}


def test_every_tenant_has_a_data_key_of_its_own_that_no_text_shows(
    database: Database, tenant: Tenant
) -> None:
    other = tenant_create()
    mine, also_mine, theirs = key_issue(tenant).key, key_issue(tenant).key, key_issue(other).key
    grants = _grants(database)
    assert grants[mine.id].data_key == grants[also_mine.id].data_key != grants[theirs.id].data_key
    assert str(grants[mine.id].data_key) not in repr(grants)
    with psycopg.connect(database.admin_url) as admin:
        for _, wrapped in admin.execute("SELECT tenant_id, wrapped FROM tenants_tenantdatakey"):
            assert grants[mine.id].data_key not in bytes(wrapped)


def test_a_tenant_whose_data_key_was_altered_is_left_out_and_the_others_are_not(
    database: Database, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    key_issue(tenant)
    other = key_issue(tenant_create()).key
    with psycopg.connect(database.admin_url) as admin:
        admin.execute(
            "UPDATE tenants_tenantdatakey SET wrapped = set_byte(wrapped, 20, get_byte(wrapped, 20) # 1)"
            " WHERE tenant_id = %s",
            [tenant.id],
        )
    assert set(_grants(database)) == {other.id}
    assert str(tenant.id) in caplog.text


def test_one_tenants_wrapped_key_is_of_no_use_to_another(database: Database, tenant: Tenant) -> None:
    key_issue(tenant)
    other = tenant_create()
    with psycopg.connect(database.admin_url) as admin:
        admin.execute(
            "UPDATE tenants_tenantdatakey SET wrapped ="
            " (SELECT wrapped FROM tenants_tenantdatakey WHERE tenant_id = %s) WHERE tenant_id = %s",
            [other.id, tenant.id],
        )
    assert _grants(database) == {}


def test_with_a_wrong_master_key_nothing_is_loaded(database: Database, tenant: Tenant) -> None:
    key_issue(tenant)
    with pytest.raises(DataKeyUnreadable, match="not in SLUICE_MASTER_KEY"):
        _grants(database, [bytes(32)])


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
        (
            lambda tenant, key: services.tenant_settings_set(
                tenant_id=tenant,
                zero_retention=True,
                max_output_tokens=None,
                continues_streams=False,
                actor=ACTOR,
            ),
            "tenants_tenant",
        ),
        (
            lambda tenant, key: services.key_limit_set(
                tenant_id=tenant, key_id=key, max_open_requests=1, actor=ACTOR
            ),
            "tenants_apikey",
        ),
    ],
    ids=["revoke", "issue", "suspend", "settings", "limit"],
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
