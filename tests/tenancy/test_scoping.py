"""The tenant scope: one transaction, one tenant, nothing left behind."""

import asyncio
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from tenants.models import ApiKey, Tenant
from tenants.scoping import (
    TenantScopeConflict,
    TenantScopeMissing,
    alias_current,
    operator_scope,
    tenant_current,
    tenant_scope,
)
from tests.conftest import Database
from tests.factories import key_create, tenant_create


@pytest.fixture
def two(database: Database) -> tuple[UUID, UUID]:
    first, second = tenant_create(), tenant_create()
    key_create(first)
    key_create(second)
    return first.id, second.id


def _setting(alias: str = "default") -> str:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('app.tenant_id', true), '')")
        value: str = cursor.fetchone()[0]
    return value


def test_the_setting_ends_with_the_scope(two: tuple[UUID, UUID]) -> None:
    with tenant_scope(two[0]):
        assert _setting() == str(two[0])
        assert tenant_current() == two[0]
    assert _setting() == ""
    assert tenant_current() is None
    assert Tenant.unscoped.count() == 0


def test_the_setting_ends_with_a_failed_scope(two: tuple[UUID, UUID]) -> None:
    with pytest.raises(LookupError), tenant_scope(two[0]):
        raise LookupError
    assert _setting() == ""
    assert tenant_current() is None


def test_the_setting_ends_with_the_transaction_itself(two: tuple[UUID, UUID]) -> None:
    """Not only with our own clean-up: what a connection pooler sees is the transaction."""
    with tenant_scope(two[0]):
        connections["default"].connection.commit()
        assert _setting() == ""


def test_an_outer_transaction_does_not_keep_the_tenant(two: tuple[UUID, UUID]) -> None:
    with transaction.atomic():
        with tenant_scope(two[0]):
            assert Tenant.unscoped.count() == 1
        assert _setting() == ""
        assert Tenant.unscoped.count() == 0
        with pytest.raises(LookupError), tenant_scope(two[0]):
            raise LookupError
        assert Tenant.unscoped.count() == 0
        with tenant_scope(two[1]):
            assert Tenant.objects.get().id == two[1]


def test_scopes_nest_for_one_tenant_only(two: tuple[UUID, UUID]) -> None:
    with tenant_scope(two[0]):
        with tenant_scope(two[0]):
            assert ApiKey.objects.count() == 1
        assert ApiKey.objects.count() == 1
        with pytest.raises(TenantScopeConflict), tenant_scope(two[1]):
            pass
        assert ApiKey.objects.get().tenant_id == two[0]


def test_an_operator_may_visit_one_tenant(two: tuple[UUID, UUID]) -> None:
    with operator_scope():
        assert alias_current() == "operator"
        assert ApiKey.unscoped.count() == 2
        with tenant_scope(two[0]):
            assert ApiKey.objects.count() == 1
        with pytest.raises(TenantScopeMissing):
            ApiKey.objects.count()
    assert alias_current() == "default"


def test_a_scope_of_a_tenant_that_is_not_there_is_empty(two: tuple[UUID, UUID]) -> None:
    with tenant_scope(uuid4()):
        assert Tenant.objects.count() == 0
        assert ApiKey.objects.count() == 0


def test_a_pooled_connection_carries_no_tenant(two: tuple[UUID, UUID]) -> None:
    """Given one server process, reused: its next user sees nothing."""
    backends = set()
    for _ in range(3):
        with tenant_scope(two[0]), connections["default"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            backends.add(cursor.fetchone()[0])
        connections["default"].close()
        assert ApiKey.unscoped.count() == 0
        connections["default"].close()
    assert len(backends) == 1


def test_the_tenant_is_the_first_statement_on_a_new_connection(two: tuple[UUID, UUID]) -> None:
    """A statement planned before a tenant is set could keep a plan that suits no rows."""
    statements: list[str] = []

    def record(execute: Any, statement: str, *rest: Any) -> Any:
        statements.append(statement)
        return execute(statement, *rest)

    connections["default"].close()
    with ExitStack() as stack:
        stack.enter_context(connections["default"].execute_wrapper(record))
        with tenant_scope(two[0]):
            assert ApiKey.objects.count() == 1
            raw = connections["default"].connection
            assert raw.prepare_threshold is None  # Django's connections prepare nothing
    assert "set_config('app.tenant_id'" in statements[0]
    assert "tenants_apikey" in statements[1]


def test_a_statement_prepared_without_a_tenant_still_sees_the_right_rows(
    database: Database, two: tuple[UUID, UUID]
) -> None:
    with psycopg.connect(database.app_url, prepare_threshold=0) as app:
        seen = []
        for tenant in [None] * 6 + [two[0]] * 6 + [two[1]] * 6 + [None]:
            if tenant is not None:
                app.execute("SELECT set_config('app.tenant_id', %s, true)", [str(tenant)])
            seen.append([row[0] for row in app.execute("SELECT tenant_id FROM tenants_apikey")])
            app.commit()
        plans = app.execute(
            "SELECT sum(generic_plans) FROM pg_prepared_statements "
            "WHERE statement LIKE '%FROM tenants_apikey'"
        ).fetchone()
    assert seen == [[]] * 6 + [[two[0]]] * 6 + [[two[1]]] * 6 + [[]]
    assert plans is not None
    assert plans[0] > 0  # the cached plan was used, not a new one each time


async def test_concurrent_scopes_do_not_mix(two: tuple[UUID, UUID]) -> None:
    def visit(tenant_id: UUID) -> tuple[UUID | None, list[UUID]]:
        with tenant_scope(tenant_id):
            return tenant_current(), list(ApiKey.objects.values_list("tenant_id", flat=True))

    visits = [two[n % 2] for n in range(8)]
    results = await asyncio.gather(*(sync_to_async(visit)(tenant) for tenant in visits))
    assert results == [(tenant, [tenant]) for tenant in visits]
    assert tenant_current() is None
