"""The audit log: written with what it records, and a chain that shows tampering."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from uuid import UUID

import psycopg
import pytest
from django.db import connections, transaction

from tenants import services
from tenants.audit import audit_verify, audit_write
from tenants.models import AuditEntry, Tenant
from tenants.scoping import operator_scope, tenant_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, tenant_create


@pytest.fixture
def tenant(database: Database) -> Tenant:
    """Given a tenant with a chain of five entries."""
    tenant = tenant_create("acme")
    key = key_issue(tenant).key
    with operator_scope():
        services.key_revoke(tenant_id=tenant.id, key_id=key.id, actor=ACTOR, reason="lost")
        services.tenant_suspend(tenant_id=tenant.id, actor=ACTOR, reason="unpaid — §4")
        services.tenant_resume(tenant_id=tenant.id, actor=ACTOR)
    return tenant


def _verify(tenant_id: UUID | None) -> int | None:
    with operator_scope():
        return audit_verify(tenant_id=tenant_id)


def test_every_write_leaves_one_entry(tenant: Tenant) -> None:
    with tenant_scope(tenant.id):
        actions = list(AuditEntry.objects.order_by("sequence").values_list("sequence", "action", "actor"))
    assert actions == [
        (1, "tenant.create", ACTOR),
        (2, "key.issue", ACTOR),
        (3, "key.revoke", ACTOR),
        (4, "tenant.suspend", ACTOR),
        (5, "tenant.resume", ACTOR),
    ]
    assert _verify(tenant.id) is None


def test_a_write_that_changes_nothing_leaves_none(tenant: Tenant) -> None:
    with operator_scope():
        services.tenant_resume(tenant_id=tenant.id, actor=ACTOR)
        assert AuditEntry.unscoped.filter(tenant=tenant).count() == 5


def test_an_undone_write_leaves_none(tenant: Tenant) -> None:
    with operator_scope(), transaction.atomic(using="operator"):
        services.key_issue(tenant_id=tenant.id, name="undone", actor=ACTOR)
        transaction.set_rollback(True, using="operator")
    with operator_scope():
        assert AuditEntry.unscoped.filter(tenant=tenant).count() == 5
    assert _verify(tenant.id) is None


def test_an_entry_needs_a_transaction(tenant: Tenant) -> None:
    with operator_scope(), pytest.raises(RuntimeError, match="transaction"):
        audit_write(tenant_id=tenant.id, actor=ACTOR, action="x", target="y")


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE tenants_auditentry SET actor = 'somebody else' WHERE sequence = 3",
        "UPDATE tenants_auditentry SET diff = '{}' WHERE sequence = 3",
        "UPDATE tenants_auditentry SET created_at = created_at + interval '1 us' WHERE sequence = 3",
        "UPDATE tenants_auditentry SET entry_hash = sha256('forged') WHERE sequence = 3",
        "DELETE FROM tenants_auditentry WHERE sequence = 3",
        "DELETE FROM tenants_auditentry WHERE sequence < 3; "
        "UPDATE tenants_auditentry SET sequence = sequence - 2",
    ],
)
def test_tampering_breaks_the_chain(database: Database, tenant: Tenant, tampering: str) -> None:
    with psycopg.connect(database.admin_url) as admin:
        admin.execute("ALTER TABLE tenants_auditentry DISABLE TRIGGER append_only")
        admin.execute(tampering)
        admin.execute("ALTER TABLE tenants_auditentry ENABLE TRIGGER append_only")
    assert _verify(tenant.id) in (1, 3)


def test_chains_are_per_tenant_and_the_platform_has_its_own(tenant: Tenant) -> None:
    other = tenant_create()
    with operator_scope(), transaction.atomic(using="operator"):
        audit_write(tenant_id=None, actor=ACTOR, action="price.publish", target="model")
        audit_write(tenant_id=None, actor=ACTOR, action="price.publish", target="model")
    with operator_scope():
        assert AuditEntry.unscoped.get(tenant=other).sequence == 1
        assert list(AuditEntry.unscoped.filter(tenant=None).values_list("sequence", flat=True)) == [2, 1]
    assert [_verify(chain) for chain in (tenant.id, other.id, None)] == [None, None, None]
    with tenant_scope(tenant.id):
        assert not AuditEntry.unscoped.filter(tenant=None).exists()


def test_concurrent_writers_follow_each_other(tenant: Tenant) -> None:
    def issue() -> None:
        try:
            services.key_issue(tenant_id=tenant.id, name="concurrent", actor=ACTOR)
        finally:
            connections.close_all()

    with operator_scope(), ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(copy_context().run, issue) for _ in range(16)]:
            done.result()
    with operator_scope():
        assert AuditEntry.unscoped.filter(tenant=tenant).count() == 5 + 16
    assert _verify(tenant.id) is None
