"""Writes to tenants, members and keys."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.exceptions import ValidationError

from tenants import selectors, services
from tenants.keys import key_parse
from tenants.models import ApiKey, AuditEntry, Tenant, User
from tenants.scoping import operator_scope, tenant_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, tenant_create


@pytest.fixture
def tenant(database: Database) -> Tenant:
    return tenant_create("acme")


def test_no_table_holds_a_key(database: Database, tenant: Tenant) -> None:
    plaintext = key_issue(tenant).plaintext
    secret = plaintext[16:48]
    with psycopg.connect(database.admin_url) as admin:
        tables = admin.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        found = [
            table
            for (table,) in tables.fetchall()
            for text in (secret, secret.encode().hex())  # bytea columns read as hex
            if admin.execute(f'SELECT 1 FROM "{table}" t WHERE t::text LIKE %s', [f"%{text}%"]).fetchone()
        ]
        public = admin.execute("SELECT public_id, last4 FROM tenants_apikey").fetchone()
    assert found == []
    assert public == (plaintext[7:15], plaintext[-4:])


def test_a_tenant_issues_and_revokes_its_own_keys(tenant: Tenant) -> None:
    """As the application role: no operator needed."""
    issued = services.key_issue(tenant_id=tenant.id, name="own", actor="owner@acme")
    assert key_parse(issued.plaintext) is not None
    first = services.key_revoke(tenant_id=tenant.id, key_id=issued.key.id, actor="owner@acme")
    again = services.key_revoke(tenant_id=tenant.id, key_id=issued.key.id, actor="owner@acme")
    assert first.revoked_at == again.revoked_at is not None
    with tenant_scope(tenant.id):
        assert AuditEntry.objects.filter(action="key.revoke").count() == 1


def test_a_key_of_another_tenant_is_unknown(tenant: Tenant) -> None:
    theirs = key_issue(tenant_create()).key
    with pytest.raises(services.KeyUnknown):
        services.key_revoke(tenant_id=tenant.id, key_id=theirs.id, actor="mallory")
    with operator_scope(), pytest.raises(services.KeyUnknown):  # nor by an operator's slip
        services.key_revoke(tenant_id=tenant.id, key_id=theirs.id, actor=ACTOR)
    with operator_scope():
        assert ApiKey.unscoped.get(id=theirs.id).revoked_at is None


def test_an_unknown_scope_is_refused(tenant: Tenant) -> None:
    with pytest.raises(services.UnknownScope, match="root"):
        services.key_issue(tenant_id=tenant.id, name="n", actor=ACTOR, scopes=["root"])
    assert list(selectors.key_list(tenant_id=tenant.id)) == []


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "n" * 201}, {"allowed_models": ["m" * 201]}])
def test_a_key_with_a_wrong_field_is_refused(tenant: Tenant, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        services.key_issue(tenant_id=tenant.id, actor=ACTOR, **{"name": "n"} | wrong)
    with pytest.raises(ValidationError):
        services.key_issue(tenant_id=uuid4(), actor=ACTOR, name="of nobody")
    assert list(selectors.key_list(tenant_id=tenant.id)) == []


def test_a_slug_is_taken_once(tenant: Tenant) -> None:
    with pytest.raises(ValidationError):
        tenant_create("acme")
    with pytest.raises(ValidationError):
        tenant_create("no spaces")


def test_an_unknown_tenant_cannot_be_suspended(database: Database) -> None:
    with operator_scope(), pytest.raises(services.TenantUnknown):
        services.tenant_suspend(tenant_id=uuid4(), actor=ACTOR)


def test_a_user_is_a_member_once(tenant: Tenant) -> None:
    with operator_scope():
        user = User.objects.create_user("ann")
        services.member_add(tenant_id=tenant.id, user=user, role="owner", actor=ACTOR)
        with pytest.raises(ValidationError):
            services.member_add(tenant_id=tenant.id, user=user, role="viewer", actor=ACTOR)
        with pytest.raises(ValidationError):
            services.member_add(tenant_id=tenant_create().id, user=user, role="king", actor=ACTOR)
