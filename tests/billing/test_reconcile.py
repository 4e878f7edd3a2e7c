"""Reconciliation finds every kind of difference, and nothing where there is none; sums and prices."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.core.management import CommandError, call_command
from msgspec.structs import replace

from billing import selectors
from billing.ledger import usage_record
from billing.models import Price
from billing.services import PriceBackdated
from billing.tasks import ledger_verify
from billing.worker_usage import Cursor, cursor_load, worker_usage_store
from gpuworker.wire.messages import UsageCheckpoint
from tenants.models import AuditEntry
from tenants.scoping import operator_scope, tenant_scope
from tests.billing.records import OCCURRED_AT_MS, request_id
from tests.billing.shop import LONG_AGO, Shop, price


def checkpoint(shop: Shop, number: int, output_tokens: int, reason: str = "stop") -> UsageCheckpoint:
    return UsageCheckpoint(
        request_id=str(request_id(number)),
        attempt=1,
        tenant=str(shop.a),
        gateway="gateway-inc",
        worker="worker-0",
        worker_incarnation="worker-inc",
        model="m",
        digest="d",
        klass="interactive",
        prompt_tokens=10,
        cached_tokens=0,
        output_tokens=output_tokens,
        reason=reason,
        at_ms=OCCURRED_AT_MS,
    )


def store(shop: Shop, *checkpoints: UsageCheckpoint, position: int = 1) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(shop.database.operator_url, autocommit=True) as conn:
            await worker_usage_store(conn, "worker-0", checkpoints, Cursor("journal-1", position))
            assert await cursor_load(conn, "worker-0") == Cursor("journal-1", position)

    asyncio.run(run())


def record(shop: Shop, number: int, **changes: object) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as conn:
            await usage_record(conn, [shop.usage(number, **changes)])

    asyncio.run(run())


def corrupt(shop: Shop, statement: str) -> None:
    """As a superuser with every trigger off: what no role of ours can do."""
    with psycopg.connect(shop.database.admin_url, autocommit=True) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(statement)


def differing_checks() -> list[str]:
    with operator_scope():
        differences = selectors.ledger_differences() + selectors.worker_differences(grace_s=0)
    return [difference.check for difference in differences]


def test_agreement_is_reported_as_such(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    record(shop, 1)
    store(shop, checkpoint(shop, 1, 5))
    call_command("reconcile", "--grace-s", "0")
    assert capsys.readouterr().out.count("equal") == 6
    assert ledger_verify() == []


@pytest.mark.parametrize(
    ("statement", "checks"),
    [
        ("DELETE FROM billing_ledgerentry", ["usage = ledger"]),
        ("DELETE FROM billing_ledgerentry WHERE amount_micro_usd > 0", ["ledger sum", "usage = ledger"]),
        ("UPDATE billing_ledgerentry SET amount_micro_usd = 2 * amount_micro_usd", ["usage = ledger"]),
        ("UPDATE billing_usageevent SET cost_micro_usd = 1", ["usage = ledger"]),
        ("DELETE FROM billing_usageevent", ["usage = ledger", "worker = usage"]),
        ("UPDATE billing_usageevent SET output_tokens = 6", ["worker = usage"]),
    ],
)
def test_every_kind_of_damage_is_found(
    shop: Shop, statement: str, checks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    record(shop, 1)
    store(shop, checkpoint(shop, 1, 5))
    corrupt(shop, statement)
    assert differing_checks() == checks
    with pytest.raises(CommandError):
        call_command("reconcile", "--grace-s", "0")
    found = ledger_verify()
    assert [line for line in caplog.messages if line.startswith("ledger: ")] == [
        f"ledger: {d}" for d in found
    ]
    assert found


def test_worker_count_without_a_usage_event_is_a_difference_after_the_grace_period(shop: Shop) -> None:
    store(shop, checkpoint(shop, 1, 5))
    with operator_scope():
        assert selectors.worker_differences(grace_s=60) == []
        [difference] = selectors.worker_differences(grace_s=0)
    assert (difference.expected, difference.found) == ("prompt 10, cached 0, output 5", "no usage event")


@pytest.mark.parametrize(
    ("outcome", "used", "counted", "agrees"),
    [
        ("completed", 5, 5, True),
        ("completed", 5, 6, False),
        ("gateway_lost", 64, 128, True),
        ("gateway_lost", 64, 129, False),
        ("gateway_lost", 65, 64, False),
        ("error", 0, 40, True),
        ("error", 41, 40, False),
    ],
)
def test_worker_counts_are_compared_as_the_outcome_allows(
    shop: Shop, outcome: str, used: int, counted: int, agrees: bool
) -> None:
    record(shop, 1, outcome=outcome, output_tokens=used)
    store(shop, checkpoint(shop, 1, counted))
    assert (differing_checks() == []) == agrees


def test_stored_worker_counts_never_go_back(shop: Shop) -> None:
    def stored() -> list[tuple[int, str]]:
        with psycopg.connect(shop.database.operator_url) as conn:
            return conn.execute("SELECT output_tokens, reason FROM billing_workerusage").fetchall()

    store(shop, checkpoint(shop, 1, 0, ""), checkpoint(shop, 1, 64, ""), position=2)
    assert stored() == [(64, "")]
    store(shop, checkpoint(shop, 1, 0, ""))  # delivered again
    assert stored() == [(64, "")]
    store(shop, checkpoint(shop, 1, 70), position=3)
    store(shop, checkpoint(shop, 1, 64, ""), checkpoint(shop, 1, 99), position=4)
    assert stored() == [(70, "stop")]


def test_the_count_of_the_replica_that_had_it_last_stands(shop: Shop) -> None:
    def stored() -> tuple[int, str, str, int]:
        with psycopg.connect(shop.database.operator_url) as conn:
            query = "SELECT output_tokens, reason, worker_incarnation, moves FROM billing_workerusage"
            (row,) = conn.execute(query).fetchall()
            return row

    def second(output_tokens: int, reason: str) -> UsageCheckpoint:
        return replace(checkpoint(shop, 1, output_tokens, reason), worker_incarnation="other", moves=1)

    # Given a count of a replica that was taken for lost, then told to stop, and the next one's
    store(shop, checkpoint(shop, 1, 64, ""), checkpoint(shop, 1, 80, "error"))
    store(shop, second(60, ""), position=2)
    assert stored() == (60, "", "other", 1)
    # When the first one's comes again, or late
    store(shop, checkpoint(shop, 1, 80, "error"), position=3)
    # Then the next one's stands, until it says more
    assert stored() == (60, "", "other", 1)
    store(shop, second(70, "stop"), position=4)
    assert stored() == (70, "stop", "other", 1)


def test_a_worker_that_had_a_request_twice_counts_for_the_second_time(shop: Shop) -> None:
    # Given a worker that got a request again and was told only then that the first time is over
    again = replace(checkpoint(shop, 1, 30, "stop"), moves=2)
    store(shop, replace(again, output_tokens=0, reason=""), again, checkpoint(shop, 1, 80, "error"))
    # Then what it said last of the first time changes nothing
    with psycopg.connect(shop.database.operator_url) as conn:
        query = "SELECT output_tokens, reason, moves FROM billing_workerusage"
        assert conn.execute(query).fetchall() == [(30, "stop", 2)]


def test_usage_sums_show_a_tenant_its_own_usage(shop: Shop) -> None:
    price(model="n", prompt=0)
    record(shop, 1)
    record(shop, 2, output_tokens=7)
    record(shop, 3, model="n")
    record(shop, 4, tenant_id=str(shop.b))
    moment = datetime.fromtimestamp(OCCURRED_AT_MS / 1000, UTC)
    since, until = moment, moment + timedelta(milliseconds=1)
    assert selectors.usage_sums(tenant_id=shop.a, since=since, until=until) == [
        selectors.UsageSum("m", 2, 20, 0, 12, 44),
        selectors.UsageSum("n", 1, 10, 0, 5, 10),
    ]
    assert selectors.usage_sums(tenant_id=shop.a, since=until, until=until + timedelta(days=1)) == []


def test_price_versions_follow_each_other_and_leave_an_audit_entry(shop: Shop) -> None:
    future = datetime.now(UTC) + timedelta(hours=1)
    assert price(model="m", effective_from=None).version == 2
    assert price(model="m", effective_from=future).version == 3
    for moment in (LONG_AGO, future - timedelta(minutes=1), future):
        with pytest.raises(PriceBackdated):
            price(model="m", effective_from=moment)
    current = selectors.price_current(model="m", at=datetime.now(UTC))
    assert current is not None
    assert current.version == 2
    assert selectors.price_current(model="m", at=LONG_AGO - timedelta(days=1)) is None
    with operator_scope():
        targets = AuditEntry.unscoped.filter(action="price.publish").order_by("sequence")
        assert [entry.target for entry in targets] == ["m v1", "m v2", "m v3"]
        assert Price.objects.count() == 3


def test_application_role_cannot_publish_a_price(shop: Shop) -> None:
    with pytest.raises(Exception, match="permission denied"), tenant_scope(shop.a):
        Price.objects.create(
            model="m",
            version=9,
            prompt_micro_usd_per_mtok=0,
            cached_micro_usd_per_mtok=0,
            output_micro_usd_per_mtok=0,
            effective_from=LONG_AGO,
        )
