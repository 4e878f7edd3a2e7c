"""A tenant's settings, its end, and the rotation of the master key that wraps its data key."""

import json
import threading
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connections

from config.environment import master_keys
from tenants import services
from tenants.data_keys import WrappedKey, data_key_unwrap, master_key_id
from tenants.models import ApiKey, AuditEntry, Tenant, TenantDataKey
from tenants.scoping import operator_scope, tenant_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, tenant_create


@pytest.fixture
def tenant(database: Database) -> Tenant:
    return tenant_create("acme")


def close(tenant: Tenant) -> Tenant:
    with operator_scope():
        return services.tenant_close(tenant_id=tenant.id, actor=ACTOR, reason="left us")


def data_key(tenant: Tenant) -> bytes:
    with operator_scope():
        stored = TenantDataKey.unscoped.get(tenant=tenant)
    wrapped = WrappedKey(stored.master_key_id, bytes(stored.wrapped))
    return data_key_unwrap(master_keys(), tenant.id, wrapped)


def audit_last(tenant: Tenant) -> tuple[str, dict[str, Any]]:
    with operator_scope():
        entry = AuditEntry.unscoped.filter(tenant=tenant).order_by("-sequence").first()
    assert entry is not None
    return entry.action, json.loads(entry.diff)


def test_closing_revokes_every_key_and_destroys_the_data_key(tenant: Tenant) -> None:
    live, earlier = key_issue(tenant).key, key_issue(tenant).key
    with operator_scope():
        services.key_revoke(tenant_id=tenant.id, key_id=earlier.id, actor=ACTOR)
        other = key_issue(tenant_create()).key

    assert close(tenant).status == "closed"

    with operator_scope():
        assert not TenantDataKey.unscoped.filter(tenant=tenant).exists()
        assert not ApiKey.unscoped.filter(tenant=tenant, revoked_at=None).exists()
        assert ApiKey.unscoped.get(id=other.id).revoked_at is None
        assert TenantDataKey.unscoped.count() == 1
    told = {"before": "active", "reason": "left us", "keys_revoked": [live.public_id]}
    assert audit_last(tenant) == ("tenant.close", told)


def test_a_closed_tenant_stays_closed(tenant: Tenant) -> None:
    close(tenant)
    with operator_scope():
        for refused in (
            lambda: services.tenant_resume(tenant_id=tenant.id, actor=ACTOR),
            lambda: services.tenant_suspend(tenant_id=tenant.id, actor=ACTOR),
            lambda: services.tenant_close(tenant_id=tenant.id, actor=ACTOR, reason="again"),
            lambda: services.tenant_settings_set(
                tenant_id=tenant.id,
                zero_retention=True,
                max_output_tokens=None,
                continues_streams=False,
                actor=ACTOR,
            ),
            lambda: services.key_issue(tenant_id=tenant.id, name="n", actor=ACTOR),
        ):
            with pytest.raises(services.TenantClosed):
                refused()
        assert not ApiKey.unscoped.exists()
    with pytest.raises(services.TenantClosed):  # nor for the tenant itself
        services.key_issue(tenant_id=tenant.id, name="n", actor="owner@acme")
    assert audit_last(tenant)[0] == "tenant.close"


def test_a_suspended_tenant_can_be_closed_and_an_unknown_one_not(tenant: Tenant) -> None:
    with operator_scope():
        services.tenant_suspend(tenant_id=tenant.id, actor=ACTOR)
        with pytest.raises(services.TenantUnknown):
            services.tenant_close(tenant_id=uuid4(), actor=ACTOR, reason="who")
    assert close(tenant).status == "closed"


def test_a_key_issued_while_the_tenant_closes_does_not_outlive_it(database: Database, tenant: Tenant) -> None:
    """Given a close that is not committed, issuing waits for it and is refused."""
    outcome: list[object] = []

    def issue() -> None:
        try:
            outcome.append(key_issue(tenant))
        except services.TenantClosed as refusal:
            outcome.append(refusal)
        finally:
            connections.close_all()

    thread = threading.Thread(target=issue)
    with operator_scope(), tenant_scope(tenant.id):
        services.tenant_close(tenant_id=tenant.id, actor=ACTOR, reason="left us")
        thread.start()
        with psycopg.connect(database.admin_url, autocommit=True) as admin:
            while not admin.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                assert not outcome
    thread.join(10)
    assert [type(one) for one in outcome] == [services.TenantClosed]


def test_settings_are_checked_and_told(tenant: Tenant) -> None:
    def settings(**changes: Any) -> Tenant:
        chosen = {"zero_retention": False, "max_output_tokens": None, "continues_streams": False} | changes
        with operator_scope():
            return services.tenant_settings_set(tenant_id=tenant.id, actor=ACTOR, **chosen)

    settings()  # as it is: nothing to tell
    assert audit_last(tenant)[0] == "tenant.create"
    changed = settings(zero_retention=True, max_output_tokens=500, continues_streams=True)
    assert (changed.zero_retention, changed.max_output_tokens, changed.continues_streams) == (True, 500, True)
    assert audit_last(tenant) == (
        "tenant.settings",
        {
            "zero_retention_before": False,
            "zero_retention_after": True,
            "max_output_tokens_before": None,
            "max_output_tokens_after": 500,
            "continues_streams_before": False,
            "continues_streams_after": True,
        },
    )
    for wrong in (0, -1, 1 << 40):
        with pytest.raises(ValidationError):
            settings(max_output_tokens=wrong)
    with pytest.raises(ProgrammingError):  # a tenant's own people do not lift its bounds
        services.tenant_settings_set(
            tenant_id=tenant.id,
            zero_retention=False,
            max_output_tokens=None,
            continues_streams=True,
            actor="owner@acme",
        )


def test_a_keys_bound_is_checked_and_told(tenant: Tenant) -> None:
    key = key_issue(tenant).key
    with operator_scope():
        services.key_limit_set(tenant_id=tenant.id, key_id=key.id, max_open_requests=3, actor=ACTOR)
        services.key_limit_set(tenant_id=tenant.id, key_id=key.id, max_open_requests=3, actor=ACTOR)
        assert ApiKey.unscoped.get().max_open_requests == 3
        assert AuditEntry.unscoped.filter(action="key.limit").count() == 1
        assert audit_last(tenant) == ("key.limit", {"before": None, "after": 3})
        with pytest.raises(ValidationError):
            services.key_limit_set(tenant_id=tenant.id, key_id=key.id, max_open_requests=0, actor=ACTOR)
        with pytest.raises(services.KeyUnknown):
            services.key_limit_set(tenant_id=tenant.id, key_id=uuid4(), max_open_requests=1, actor=ACTOR)


def test_a_master_key_is_rotated_without_a_gap(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tenant_create()
    close(closed)
    before, old = data_key(tenant), master_keys()[0]
    new = b"n" * 32

    monkeypatch.setenv("SLUICE_MASTER_KEY", f"{new.hex()},{old.hex()}")
    assert data_key(tenant) == before
    call_command("data_keys_rewrap")
    told = {"before": master_key_id(old), "after": master_key_id(new)}
    assert audit_last(tenant) == ("data_key.rewrap", told)
    call_command("data_keys_rewrap")  # nothing left to do
    assert audit_last(tenant) == ("data_key.rewrap", told)

    monkeypatch.setenv("SLUICE_MASTER_KEY", new.hex())
    assert data_key(tenant) == before
    monkeypatch.setenv("SLUICE_MASTER_KEY", b"x".hex() * 32)
    with pytest.raises(CommandError, match="not in SLUICE_MASTER_KEY"):
        call_command("data_keys_rewrap")
