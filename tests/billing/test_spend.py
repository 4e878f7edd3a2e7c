"""What a tenant has spent is what was billed: by period, key and model, and never another tenant's."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from billing import spend
from billing.connections import Connections, StoreUnavailable
from billing.ledger import receivable_account, usage_record
from billing.spend import spent_since
from tests.billing.records import OCCURRED_AT_MS
from tests.billing.shop import Shop, rows

NOON = datetime.fromtimestamp(OCCURRED_AT_MS / 1000, UTC)
HOUR_MS = 3_600_000
KEYS = (UUID(int=1), UUID(int=2))


@pytest.fixture
async def connections(shop: Shop) -> AsyncIterator[Connections]:
    connections = Connections(shop.database.gateway_url, size=1, limit_s=5)
    yield connections
    await connections.close()


async def test_what_was_spent_is_what_the_ledger_moved(
    shop: Shop, gateway: psycopg.AsyncConnection[Any], connections: Connections
) -> None:
    records = [
        shop.usage(
            number,
            tenant_id=str((shop.a, shop.b)[number % 3 == 0]),
            key_id=str(KEYS[number % 2]),
            prompt_tokens=number * 37 % 900,
            output_tokens=number * 61 % 500,
            outcome=("completed", "cancelled", "replica_lost")[number % 3],
        )
        for number in range(1, 40)
    ]
    await usage_record(gateway, records)
    # A later attempt bills what it has more, and as the reaper's it comes without a key.
    await usage_record(gateway, [shop.usage(1, attempt=2, output_tokens=900)])
    keyless = 2 * (900 - records[0].output_tokens)
    for tenant in (shop.a, shop.b):
        async with await psycopg.AsyncConnection.connect(shop.database.operator_url) as operator:
            [(moved,)] = await rows(
                operator,
                "SELECT sum(amount_micro_usd) FROM billing_ledgerentry WHERE account = %s",
                receivable_account(tenant),
            )
        spent = await spent_since(connections, tenant, NOON)
        by_key = [await spent_since(connections, tenant, NOON, key_id=key) for key in (*KEYS, UUID(int=3))]
        assert spent == moved > 0
        assert by_key[2] == 0
        assert all(0 < part < spent for part in by_key[:2])
        assert spent - sum(by_key) == (keyless if tenant == shop.a else 0)
    assert await spent_since(connections, shop.a, NOON, model="m") == await spent_since(
        connections, shop.a, NOON
    )
    assert await spent_since(connections, shop.a, NOON, model="n") == 0


async def test_it_counts_from_a_moment_on(
    shop: Shop, gateway: psycopg.AsyncConnection[Any], connections: Connections
) -> None:
    for hour in range(4):
        record = shop.usage(hour + 1, output_tokens=10**hour, occurred_at_ms=OCCURRED_AT_MS + hour * HOUR_MS)
        await usage_record(gateway, [record])
    prompt, output = 10, 2  # micro-dollars a prompt, and an output token
    spent = [await spent_since(connections, shop.a, NOON + timedelta(hours=hour)) for hour in range(5)]
    assert spent == [sum(prompt + output * 10**later for later in range(hour, 4)) for hour in range(5)]


async def test_a_tenant_that_spent_nothing_spent_nothing(connections: Connections, shop: Shop) -> None:
    assert await spent_since(connections, shop.a, NOON) == 0


async def test_a_store_that_is_away_is_said(shop: Shop) -> None:
    away = Connections("postgresql://nobody@127.0.0.1:1/none", size=1, limit_s=1)
    with pytest.raises(StoreUnavailable):
        await spent_since(away, shop.a, NOON)


async def test_one_range_of_an_index_is_read(shop: Shop, gateway: psycopg.AsyncConnection[Any]) -> None:
    async with gateway.transaction():
        await gateway.execute("SET LOCAL enable_seqscan = off")
        await gateway.execute("SELECT set_config('app.tenant_id', %s, true)", (str(shop.a),))
        asked = {"tenant_id": shop.a, "since": NOON, "key_id": KEYS[0], "model": None}
        plan = await (await gateway.execute(f"EXPLAIN {spend._SPENT}", asked)).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert "usage_tenant_time" in text
    assert "occurred_at >=" in text
