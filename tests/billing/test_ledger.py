"""The ledger: each attempt billed once, at the price of its moment, with a balanced pair; nothing is lost."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.contracts import OUTCOMES, UsageRecord
from billing.ledger import PriceMissing, transaction_id, usage_record
from billing.services import PriceBackdated
from tests.billing.records import OCCURRED_AT_MS, request_id
from tests.billing.shop import LONG_AGO, Shop, price, rows

Connection = psycopg.AsyncConnection[Any]


async def test_record_becomes_a_usage_row_and_a_balanced_pair(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    record = shop.usage(prompt_tokens=1000, cached_tokens=400, output_tokens=50, key_id=str(UUID(int=7)))

    assert await usage_record(gateway, [record]) == 1

    [row] = await rows(
        operator,
        "SELECT request_id, tenant_id, key_id, billable_prompt_tokens, billable_cached_tokens,"
        " billable_output_tokens, outcome, price_version, cost_micro_usd, occurred_at"
        " FROM billing_usageevent",
    )
    moment = datetime.fromtimestamp(OCCURRED_AT_MS / 1000, UTC)
    assert row == (request_id(1), shop.a, UUID(int=7), 600, 400, 50, "completed", 1, 900, moment)
    assert await rows(
        operator, "SELECT txn_id, account, amount_micro_usd FROM billing_ledgerentry ORDER BY account"
    ) == [
        (transaction_id(request_id(1), 1), "revenue:inference", -900),
        (transaction_id(request_id(1), 1), f"tenant:{shop.a}:receivable", 900),
    ]


async def test_what_was_computed_again_is_recorded_and_bills_nothing(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    moved = {"replica_attempts": 2, "lost_cause": "crashed", "recomputed_tokens": 1_040}
    fields = {"prompt_tokens": 1_000, "output_tokens": 50}
    await usage_record(gateway, [shop.usage(1, **fields), shop.usage(2, **fields, **moved)])
    plain, after_loss = await rows(
        operator,
        "SELECT cost_micro_usd, replica_attempts, lost_cause, recomputed_tokens FROM billing_usageevent"
        " ORDER BY request_id",
    )
    assert plain == (plain[0], 1, "", 0)
    assert after_loss == (plain[0], 2, "crashed", 1_040)


async def test_event_without_cost_has_no_ledger_pair(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    lost = shop.usage(1, outcome="replica_lost", output_tokens=0)
    queued = shop.usage(2, outcome="cancelled", prompt_tokens=0, output_tokens=0)
    assert await usage_record(gateway, [lost, queued]) == 2
    assert await rows(operator, "SELECT cost_micro_usd FROM billing_usageevent") == [(0,), (0,)]
    assert await rows(operator, "SELECT 1 FROM billing_ledgerentry") == []


async def test_repeated_records_change_nothing(shop: Shop, gateway: Connection, operator: Connection) -> None:
    records = [shop.usage(number) for number in range(1, 6)]
    assert await usage_record(gateway, records[:3]) == 3
    assert await usage_record(gateway, records + records) == 2
    assert await usage_record(gateway, records) == 0
    assert await usage_record(gateway, []) == 0
    assert await rows(operator, "SELECT count(*) FROM billing_ledgerentry") == [(10,)]
    assert await rows(operator, "SELECT count(*) FROM billing_usageconflict") == [(0,)]


async def test_concurrent_writers_of_the_same_records_bill_each_once(
    shop: Shop, operator: Connection
) -> None:
    records = [
        shop.usage(number, tenant_id=str(tenant), attempt=attempt)
        for number in range(1, 21)
        for attempt in (1, 2)
        for tenant in [shop.a if number % 2 else shop.b]
    ]

    async def write(order: list[UsageRecord]) -> int:
        async with await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as conn:
            return await usage_record(conn, order)

    counts = await asyncio.gather(
        *(write(order) for order in (records, records[::-1], records[7:] + records[:7], records[::2]))
    )

    assert sum(counts) == len(records)
    assert await rows(
        operator,
        "SELECT count(*), sum(billable_prompt_tokens), sum(billable_output_tokens) FROM billing_usageevent",
    ) == [(40, 20 * 10, 20 * 5)]
    assert await rows(operator, "SELECT sum(amount_micro_usd), count(*) FROM billing_ledgerentry") == [
        (0, 40)  # the second attempt of each has nothing left to bill
    ]
    assert await rows(operator, "SELECT count(*) FROM billing_usageconflict") == [(0,)]


async def test_prompt_bills_once_whichever_attempt_comes_first(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    failed: dict[str, Any] = {"outcome": "replica_lost", "output_tokens": 0}
    await usage_record(gateway, [shop.usage(1, attempt=2), shop.usage(1, attempt=1)])  # one batch
    await usage_record(gateway, [shop.usage(2, attempt=2)])  # out of order
    await usage_record(gateway, [shop.usage(2, attempt=1)])
    await usage_record(gateway, [shop.usage(3, attempt=1, **failed), shop.usage(3, attempt=2)])
    assert await rows(
        operator,
        "SELECT request_id, attempt, billable_prompt_tokens, billable_output_tokens FROM billing_usageevent"
        " ORDER BY request_id, attempt",
    ) == [
        (request_id(1), 1, 10, 5),
        (request_id(1), 2, 0, 0),
        (request_id(2), 1, 0, 0),
        (request_id(2), 2, 10, 5),
        (request_id(3), 1, 0, 0),
        (request_id(3), 2, 10, 5),
    ]


@pytest.mark.parametrize(
    "contradiction",
    [
        {"output_tokens": 6},
        {"prompt_tokens": 11},
        {"outcome": "cancelled"},
        {"digest": "other"},
        {"worker_incarnation": "other"},
        {"key_id": str(UUID(int=2))},
    ],
)
async def test_contradicting_record_is_kept_for_review(
    shop: Shop,
    gateway: Connection,
    operator: Connection,
    contradiction: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = shop.usage(key_id=str(UUID(int=1)))
    second = shop.usage(**({"key_id": str(UUID(int=1))} | contradiction))
    await usage_record(gateway, [first])
    with caplog.at_level(logging.ERROR, logger="billing.ledger"):
        assert await usage_record(gateway, [second]) == 0
        assert await usage_record(gateway, [second]) == 0  # again: still one conflict
    assert "usage conflict" in caplog.text
    [(record,)] = await rows(operator, "SELECT record FROM billing_usageconflict")
    name, value = next(iter(contradiction.items()))
    assert record[name] == value
    assert await rows(operator, "SELECT count(*) FROM billing_usageevent") == [(1,)]


async def test_the_reapers_record_and_the_gateways_agree_when_the_counts_do(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    await usage_record(operator, [shop.usage(key_id=None)])
    later: dict[str, Any] = {
        "key_id": str(UUID(int=1)),
        "occurred_at_ms": OCCURRED_AT_MS + 12,
        "gateway": "gateway-0",
    }
    assert await usage_record(gateway, [shop.usage(**later)]) == 0
    assert await rows(operator, "SELECT count(*) FROM billing_usageconflict") == [(0,)]


async def test_key_of_another_tenant_is_a_conflict_and_shows_nothing(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    await usage_record(gateway, [shop.usage()])
    assert await usage_record(gateway, [shop.usage(tenant_id=str(shop.b))]) == 0
    assert await rows(operator, "SELECT tenant_id FROM billing_usageconflict") == [(shop.b,)]
    assert await rows(operator, "SELECT DISTINCT tenant_id FROM billing_ledgerentry") == [(shop.a,)]


async def test_missing_price_refuses_the_whole_batch_and_a_later_price_bills_it(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    batch = [shop.usage(1), shop.usage(2, model="unpriced")]
    with pytest.raises(PriceMissing) as refusal:
        await usage_record(gateway, batch)
    assert refusal.value.models == {"unpriced"}
    assert await rows(operator, "SELECT count(*) FROM billing_usageevent") == [(0,)]

    await asyncio.to_thread(price, model="unpriced")
    assert await usage_record(gateway, batch) == 2


async def test_a_price_before_the_first_one_bills_what_waited_for_it(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    """Given a first price from now on, published while usage of a moment ago waited for one."""
    now = datetime.now(UTC)
    await asyncio.to_thread(price, model="new", effective_from=now)
    waiting = shop.usage(model="new", occurred_at_ms=int((now - timedelta(seconds=1)).timestamp() * 1000))
    with pytest.raises(PriceMissing):
        await usage_record(gateway, [waiting])

    await asyncio.to_thread(price, model="new", prompt=3_000_000, effective_from=now - timedelta(hours=1))
    later = shop.usage(2, model="new", occurred_at_ms=int(now.timestamp() * 1000) + 1)
    assert await usage_record(gateway, [waiting, later]) == 2
    assert await rows(operator, "SELECT price_version FROM billing_usageevent ORDER BY request_id") == [
        (2,),
        (1,),
    ]
    with pytest.raises(PriceBackdated):  # between the two something was billed
        await asyncio.to_thread(price, model="new", effective_from=now - timedelta(seconds=2))


async def test_price_is_the_version_effective_when_the_request_occurred(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    later = soon + timedelta(hours=1)
    await asyncio.to_thread(price, model="m", prompt=3_000_000, effective_from=soon)
    await asyncio.to_thread(price, model="m", prompt=7_000_000, effective_from=later)
    milliseconds = [int(moment.timestamp() * 1000) for moment in (LONG_AGO, soon, later)]
    moments = [milliseconds[0], milliseconds[1] - 1, milliseconds[1], milliseconds[2] - 1, milliseconds[2]]

    await usage_record(
        gateway,
        [
            shop.usage(number, occurred_at_ms=at, output_tokens=0)
            for number, at in enumerate(moments, start=1)
        ],
    )

    assert await rows(
        operator, "SELECT price_version, cost_micro_usd FROM billing_usageevent ORDER BY request_id"
    ) == [(1, 10), (1, 10), (2, 30), (2, 30), (3, 70)]
    with pytest.raises(PriceMissing):
        await usage_record(gateway, [shop.usage(9, occurred_at_ms=milliseconds[0] - 1)])


async def test_failure_in_the_middle_writes_nothing(
    shop: Shop, gateway: Connection, operator: Connection
) -> None:
    unknown_tenant = shop.usage(2, tenant_id=str(UUID(int=1 << 127)))
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await usage_record(gateway, [shop.usage(1), unknown_tenant])
    assert await rows(operator, "SELECT count(*) FROM billing_usageevent") == [(0,)]
    assert await usage_record(gateway, [shop.usage(1)]) == 1  # the connection is still good


batches = st.lists(
    st.lists(
        st.tuples(
            st.integers(1, 4),  # request
            st.integers(1, 3),  # attempt
            st.sampled_from([0, 0, 7, 900]),  # prompt
            st.sampled_from([0, 5]),  # cached
            st.integers(0, 300),  # output
            st.sampled_from(OUTCOMES),
            st.booleans(),  # whose
        ),
        max_size=6,
    ),
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches)
def test_any_sequence_of_batches_keeps_the_ledger_whole(shop: Shop, sequence: list[list[Any]]) -> None:
    async def scenario() -> None:
        async with (
            await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as gateway,
            await psycopg.AsyncConnection.connect(shop.database.operator_url, autocommit=True) as operator,
        ):
            [(events_before,)] = await rows(operator, "SELECT count(*) FROM billing_usageevent")
            written = 0
            for batch in sequence:
                written += await usage_record(
                    gateway,
                    [
                        shop.usage(
                            number,
                            tenant_id=str(shop.a if ours else shop.b),
                            attempt=attempt,
                            prompt_tokens=prompt,
                            cached_tokens=cached,
                            output_tokens=output,
                            outcome=outcome,
                        )
                        for number, attempt, prompt, cached, output, outcome, ours in batch
                    ],
                )
            [(events, cost)] = await rows(
                operator, "SELECT count(*), coalesce(sum(cost_micro_usd), 0) FROM billing_usageevent"
            )
            assert events == events_before + written
            [(total, receivable)] = await rows(
                operator,
                "SELECT coalesce(sum(amount_micro_usd), 0),"
                " coalesce(sum(amount_micro_usd) FILTER (WHERE account LIKE 'tenant:%'), 0)"
                " FROM billing_ledgerentry",
            )
            assert (total, receivable) == (0, cost)
            assert (
                await rows(
                    operator,
                    "SELECT request_id FROM billing_usageevent"
                    " WHERE billable_prompt_tokens + billable_cached_tokens > 0"
                    " GROUP BY request_id HAVING count(*) > 1",
                )
                == []
            )

    asyncio.run(scenario())
