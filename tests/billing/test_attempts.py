"""A request attempted several times bills its prompt once and its longest output, whatever happens."""

import asyncio
from itertools import count
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.contracts import OUTCOMES, UsageRecord
from billing.ledger import usage_record
from billing.pricing import billable_tokens
from tests.billing.records import request_id
from tests.billing.shop import Shop, rows

Connection = psycopg.AsyncConnection[Any]

_numbers = count(1000)


async def billed(conn: Connection, number: int) -> list[tuple[Any, ...]]:
    """(attempt, prompt, output) that bill, of each attempt."""
    return await rows(
        conn,
        "SELECT attempt, billable_prompt_tokens, billable_output_tokens FROM billing_usageevent"
        " WHERE request_id = %s ORDER BY attempt",
        request_id(number),
    )


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([(1, 40), (2, 100)], [(1, 10, 40), (2, 0, 60)]),
        ([(2, 100), (1, 40)], [(1, 0, 0), (2, 10, 100)]),
        ([(3, 50), (1, 70), (2, 60), (4, 80)], [(1, 0, 20), (2, 0, 0), (3, 10, 50), (4, 0, 10)]),
    ],
)
async def test_only_what_exceeds_the_other_attempts_bills(
    shop: Shop,
    gateway: Connection,
    operator: Connection,
    order: list[tuple[int, int]],
    expected: list[tuple[int, int, int]],
) -> None:
    for attempt, output in order:
        assert await usage_record(gateway, [shop.usage(1, attempt=attempt, output_tokens=output)]) == 1
    assert await billed(operator, 1) == expected
    await usage_record(gateway, [shop.usage(1, attempt=a, output_tokens=o) for a, o in order])
    assert await billed(operator, 1) == expected
    assert await rows(operator, "SELECT count(*) FROM billing_usageconflict") == [(0,)]


@pytest.mark.parametrize("first", [0, 1], ids=["prompt not billed yet", "prompt billed"])
async def test_two_attempts_at_once_wait_for_each_other(
    shop: Shop, gateway: Connection, operator: Connection, first: int
) -> None:
    """Given a transaction that has recorded one attempt and is not over, another attempt waits for it."""
    if first:
        await usage_record(gateway, [shop.usage(1, attempt=1, output_tokens=30)])
    async with await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as other:
        async with gateway.transaction():
            await usage_record(gateway, [shop.usage(1, attempt=first + 1, output_tokens=100)])
            late = asyncio.create_task(
                usage_record(other, [shop.usage(1, attempt=first + 2, output_tokens=120)])
            )
            while not await rows(operator, "SELECT 1 FROM pg_locks WHERE NOT granted"):
                assert not late.done()
                await asyncio.sleep(0.005)
        assert await late == 1
    assert sum(output for _, _, output in await billed(operator, 1)) == 120
    assert [prompt for _, prompt, _ in await billed(operator, 1) if prompt] == [10]


attempts = st.lists(
    st.tuples(st.sampled_from([0, 10, 10, 10]), st.integers(0, 300), st.sampled_from(OUTCOMES)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(attempts, min_size=1, max_size=3), st.integers(1, 4), st.data())
def test_any_order_by_any_number_of_writers_bills_the_longest_once(
    shop: Shop, requests: list[list[tuple[int, int, str]]], writers: int, data: st.DataObject
) -> None:
    numbered = {next(_numbers): attempts for attempts in requests}
    records = {
        number: [
            shop.usage(number, attempt=attempt, prompt_tokens=prompt, output_tokens=output, outcome=outcome)
            for attempt, (prompt, output, outcome) in enumerate(attempts, start=1)
        ]
        for number, attempts in numbered.items()
    }
    every = [record for group in records.values() for record in group]
    queues: list[list[UsageRecord]] = [[] for _ in range(writers)]
    for record in data.draw(st.permutations(every)):
        for writer in data.draw(st.sets(st.integers(0, writers - 1), min_size=1)):
            queues[writer].append(record)
    batch = data.draw(st.integers(1, 4))

    async def write(queue: list[UsageRecord]) -> int:
        async with await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as conn:
            return sum(
                [
                    await usage_record(conn, queue[start : start + batch])
                    for start in range(0, len(queue), batch)
                ]
            )

    async def scenario() -> None:
        written = await asyncio.gather(*(write(queue) for queue in queues))
        assert sum(written) == len(every)
        async with await psycopg.AsyncConnection.connect(shop.database.operator_url) as conn:
            for number, group in records.items():
                alone = [billable_tokens(record) for record in group]
                events = await billed(conn, number)
                assert sum(output for _, _, output in events) == max(tokens.output for tokens in alone)
                assert sum(prompt for _, prompt, _ in events) == max(tokens.prompt for tokens in alone)
            assert await rows(conn, "SELECT coalesce(sum(amount_micro_usd), 0) FROM billing_ledgerentry") == [
                (0,)
            ]

    asyncio.run(scenario())
