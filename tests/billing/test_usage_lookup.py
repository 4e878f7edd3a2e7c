"""What a tenant is told of one request: its own rows, of every prompt and attempt."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from billing.ledger import usage_record
from billing.usage_lookup import UsageRow, usage_find
from tests.billing.records import OCCURRED_AT_MS, request_id
from tests.billing.shop import Shop, rows

Connection = psycopg.AsyncConnection[Any]


async def test_a_request_is_found_with_what_it_used_and_cost(shop: Shop, gateway: Connection) -> None:
    await usage_record(gateway, [shop.usage(5, prompt_tokens=1000, cached_tokens=400, output_tokens=50)])
    moment = datetime.fromtimestamp(OCCURRED_AT_MS / 1000, UTC)
    assert await usage_find(gateway, shop.a, request_id(5)) == [
        UsageRow(
            request_id=request_id(5),
            attempt=1,
            model="m",
            digest="d",
            klass="interactive",
            outcome="completed",
            prompt_tokens=1000,
            cached_tokens=400,
            output_tokens=50,
            billable_prompt_tokens=600,
            billable_cached_tokens=400,
            billable_output_tokens=50,
            cost_micro_usd=900,
            occurred_at=moment,
        )
    ]


async def test_every_prompt_and_attempt_of_it_and_no_other_request(shop: Shop, gateway: Connection) -> None:
    used = [shop.usage(number, attempt=attempt) for number in (9, 10, 12, 137, 138) for attempt in (2, 1)]
    await usage_record(gateway, used)
    found = await usage_find(gateway, shop.a, request_id(10))
    expected = [(request_id(number), attempt) for number in (10, 12, 137) for attempt in (1, 2)]
    assert [(row.request_id, row.attempt) for row in found] == expected
    assert len(await usage_find(gateway, shop.a, request_id(10), prompts=1)) == 2


async def test_another_tenants_request_is_unknown(shop: Shop, gateway: Connection) -> None:
    await usage_record(gateway, [shop.usage(5)])
    assert await usage_find(gateway, shop.b, request_id(5)) == []
    assert await usage_find(gateway, shop.a, request_id(6)) == []
    assert await usage_find(gateway, shop.a, UUID(int=(1 << 128) - 1)) == []
    assert await rows(gateway, "SELECT current_setting('app.tenant_id', true)") == [("",)]  # nothing stays


async def test_it_reads_a_range_of_the_index(shop: Shop, gateway: Connection, operator: Connection) -> None:
    """And not the table, whatever its size: row security does not stand in the way."""
    await usage_record(gateway, [shop.usage(number) for number in range(1, 400)])
    async with await psycopg.AsyncConnection.connect(shop.database.admin_url, autocommit=True) as admin:
        await admin.execute("ANALYZE billing_usageevent")
    async with gateway.transaction():
        await gateway.execute("SELECT set_config('app.tenant_id', %s, true)", (str(shop.a),))
        plan = await rows(
            gateway,
            "EXPLAIN SELECT 1 FROM billing_usageevent WHERE tenant_id = %s AND request_id BETWEEN %s AND %s",
            shop.a,
            request_id(5),
            request_id(7),
        )
    assert "request_id >=" in "".join(line for (line,) in plan if "Index Cond" in line)
