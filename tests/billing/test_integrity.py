"""What the database itself refuses: unbalanced, changed, deleted and other tenants' rows, for every role."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from billing.ledger import receivable_account, usage_record
from tests.billing.records import request_id
from tests.billing.shop import Shop, rows
from tests.conftest import Database

Connection = psycopg.AsyncConnection[Any]

APPEND_ONLY = ["billing_usageevent", "billing_ledgerentry", "billing_usageconflict", "billing_price"]
CHANGES = ["UPDATE {} SET id = id", "DELETE FROM {}", "TRUNCATE {}"]
LEG = (
    "INSERT INTO billing_ledgerentry (txn_id, request_id, attempt, tenant_id, account, amount_micro_usd)"
    " VALUES (%s, %s, 1, %s, %s, %s)"
)


def url(database: Database, role: str) -> str:
    return str(getattr(database, f"{role}_url"))


async def tenant_set(conn: Connection, tenant: UUID) -> None:
    await conn.execute("SELECT set_config('app.tenant_id', %s, true)", (str(tenant),))


async def execute_as(conn: Connection, tenant: UUID, query: str, *parameters: object) -> None:
    async with conn.transaction():
        await tenant_set(conn, tenant)
        await conn.execute(query, parameters or None)


async def legs_write(conn: Connection, tenant: UUID, amounts: list[int], *, end_as: UUID) -> None:
    """One ledger transaction; the database transaction then ends in the name of `end_as`."""
    async with conn.transaction():
        await tenant_set(conn, tenant)
        txn_id = uuid4()
        for number, amount in enumerate(amounts):
            await conn.execute(LEG, (txn_id, request_id(1), tenant, f"account-{number}", amount))
        await tenant_set(conn, end_as)


@pytest.fixture
async def used(shop: Shop, gateway: Connection) -> Shop:
    """One usage event of each tenant, and one conflict of each."""
    for number, tenant in enumerate((shop.a, shop.b), start=1):
        await usage_record(gateway, [shop.usage(number, tenant_id=str(tenant))])
        await usage_record(gateway, [shop.usage(number, tenant_id=str(tenant), output_tokens=99)])
    return shop


@pytest.mark.parametrize("role", ["app", "gateway", "operator", "owner", "admin"])
async def test_history_cannot_be_changed_by_any_role(used: Shop, role: str) -> None:
    async with await psycopg.AsyncConnection.connect(url(used.database, role), autocommit=True) as conn:
        for table in APPEND_ONLY:
            for change in CHANGES:
                with pytest.raises(
                    (psycopg.errors.RestrictViolation, psycopg.errors.InsufficientPrivilege)
                ) as refusal:
                    await execute_as(conn, used.a, change.format(table))
                if role in ("owner", "admin"):  # nothing but the trigger stands in their way
                    assert isinstance(refusal.value, psycopg.errors.RestrictViolation)
    async with await psycopg.AsyncConnection.connect(used.database.operator_url) as conn:
        for table, count in zip(APPEND_ONLY, (2, 4, 2, 1), strict=True):
            assert await rows(conn, f"SELECT count(*) FROM {table}") == [(count,)]


@pytest.mark.parametrize("role", ["gateway", "operator"])
@pytest.mark.parametrize("legs", [[100], [100, -99], [100, -50, -51]])
async def test_unbalanced_transaction_is_refused_at_commit(shop: Shop, role: str, legs: list[int]) -> None:
    async with await psycopg.AsyncConnection.connect(url(shop.database, role), autocommit=True) as conn:
        # Ended in another tenant's name, whose eyes see none of these legs.
        with pytest.raises(psycopg.errors.CheckViolation, match="unbalanced ledger transaction"):
            await legs_write(conn, shop.a, legs, end_as=shop.b)


async def test_a_temporary_table_of_the_same_name_hides_no_imbalance(shop: Shop, gateway: Connection) -> None:
    """Given a role that may make temporary tables, as a database's default is."""
    async with await psycopg.AsyncConnection.connect(shop.database.admin_url, autocommit=True) as admin:
        await admin.execute(f"GRANT TEMPORARY ON DATABASE {shop.database.name} TO PUBLIC")
    txn_id = uuid4()
    await gateway.execute(
        "CREATE TEMP TABLE billing_ledgerentry (txn_id uuid, tenant_id uuid, amount_micro_usd int)"
    )
    await gateway.execute("INSERT INTO billing_ledgerentry VALUES (%s, %s, 0)", (txn_id, shop.a))
    leg = LEG.replace("billing_ledgerentry", "public.billing_ledgerentry")
    with pytest.raises(psycopg.errors.CheckViolation, match="unbalanced ledger transaction"):
        await execute_as(gateway, shop.a, leg, txn_id, request_id(1), shop.a, "x", -100)


async def test_balanced_transactions_of_two_tenants_commit_together(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    async with gateway.transaction():
        for number, tenant in enumerate((shop.a, shop.b), start=1):
            await tenant_set(gateway, tenant)
            txn_id = uuid4()
            for account, amount in (("x", 7), ("y", -7)):
                await gateway.execute(LEG, (txn_id, request_id(number), tenant, account, amount))
    assert await rows(operator, "SELECT count(*) FROM billing_ledgerentry") == [(4,)]


async def test_empty_leg_and_second_leg_of_an_account_are_refused(shop: Shop, operator: Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="ledger_amount_not_zero"):
        await operator.execute(LEG, (uuid4(), request_id(1), shop.a, "x", 0))
    txn_id = uuid4()
    await operator.execute("BEGIN")
    await operator.execute(LEG, (txn_id, request_id(1), shop.a, "x", 5))
    with pytest.raises(psycopg.errors.UniqueViolation):
        await operator.execute(LEG, (txn_id, request_id(1), shop.a, "x", -5))


@pytest.mark.parametrize("role", ["gateway", "operator"])
async def test_a_balanced_pair_cannot_move_another_tenants_account(shop: Shop, role: str) -> None:
    async with await psycopg.AsyncConnection.connect(url(shop.database, role), autocommit=True) as conn:
        for account in (receivable_account(shop.b), "tenant:", f"tenant:{shop.a}"):
            with pytest.raises(psycopg.errors.CheckViolation, match="ledger_account_of_tenant"):
                await execute_as(conn, shop.a, LEG, uuid4(), request_id(1), shop.a, account, 5)


@pytest.mark.parametrize("role", ["app", "gateway"])
async def test_tenant_sees_its_own_rows_and_nobody_sees_any_without_a_tenant(used: Shop, role: str) -> None:
    tables = ["billing_usageevent", "billing_ledgerentry", "billing_usageconflict"]
    async with await psycopg.AsyncConnection.connect(url(used.database, role), autocommit=True) as conn:
        for table in tables:
            assert await rows(conn, f"SELECT count(*) FROM {table}") == [(0,)]
        for tenant in (used.a, used.b):
            async with conn.transaction():
                await tenant_set(conn, tenant)
                for table in tables:
                    assert await rows(conn, f"SELECT DISTINCT tenant_id FROM {table}") == [(tenant,)]


async def test_gateway_cannot_write_for_another_tenant(shop: Shop, gateway: Connection) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await execute_as(gateway, shop.a, LEG, uuid4(), request_id(1), shop.b, "x", 5)


@pytest.mark.parametrize("table", ["billing_workerusage", "billing_collectcursor"])
async def test_gateway_has_no_part_in_worker_counts(shop: Shop, gateway: Connection, table: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await gateway.execute(f"SELECT 1 FROM {table}")


@pytest.mark.parametrize("role", ["app", "gateway"])
async def test_prices_are_set_by_operators_only(shop: Shop, role: str) -> None:
    async with await psycopg.AsyncConnection.connect(url(shop.database, role), autocommit=True) as conn:
        assert await rows(conn, "SELECT model FROM billing_price") == [("m",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await conn.execute(
                "INSERT INTO billing_price (model, version, prompt_micro_usd_per_mtok,"
                " cached_micro_usd_per_mtok, output_micro_usd_per_mtok, effective_from)"
                " VALUES ('m', 2, 0, 0, 0, now())"
            )
