"""Quotas over several gateways, one PostgreSQL and one Valkey: budgets, and requests that are sent again."""

import asyncio
import json
from contextlib import ExitStack
from uuid import uuid4

import pytest

from tests.gateway.durable import BODY, Fleet, key
from tests.gateway.peers import echo
from tests.gateway.raw import Response

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def bound(fleet: Fleet, name: str, limit: int) -> None:
    await fleet.apply(
        'INSERT INTO tenants_quota (id, tenant_id, scope, model, name, "limit", updated_at)'
        " VALUES (%s, %s, 'tenant', '', %s, %s, now())",
        uuid4(),
        fleet.customer.tenant_id,
        name,
        limit,
    )


def echoing(fleet: Fleet) -> ExitStack:
    stack = ExitStack()
    for gateway in fleet.gateways:
        stack.enter_context(gateway.dispatcher.scripted(echo(gateway.dispatcher)))
    return stack


async def spent(fleet: Fleet) -> int:
    query = "SELECT coalesce(sum(cost_micro_usd), 0)::bigint FROM billing_usageevent WHERE tenant_id = %s"
    ((micro_usd,),) = await fleet.sql(query, fleet.customer.tenant_id)
    return int(micro_usd)


def code(response: Response) -> str:
    return "" if response.status == 200 else str(response.json()["error"]["code"])


async def test_a_budget_is_never_passed_and_never_repeated(fleet: Fleet) -> None:
    with echoing(fleet):
        assert (await fleet.post(BODY)).status == 200
        await fleet.usage_rows(1)
        one = await spent(fleet)
        assert one > 0
        await bound(fleet, "spend_per_day", 12 * one)
        answers = [await fleet.post(BODY, gateway=number % 2) for number in range(20)]
        codes = [code(answer) for answer in answers]
        served = codes.count("")
        assert set(codes) == {"", "insufficient_quota"}
        await fleet.usage_rows(1 + served)
    refused = answers[-1]
    assert refused.status == 429
    assert refused.headers["x-should-retry"] == "false"
    assert json.loads(refused.headers["x-sluice-limit"]) == refused.json()["error"]["limit"]
    # what was billed before there was a budget counts, and what is reserved is the worst case
    assert 6 * one <= await spent(fleet) <= 12 * one


async def test_twenty_at_once_with_one_key_reserve_once(fleet: Fleet) -> None:
    await bound(fleet, "concurrent_requests", 1)
    await bound(fleet, "requests_per_minute", 10)
    with echoing(fleet):
        asked = [fleet.post(BODY, key("once"), gateway=number % 2) for number in range(20)]
        answers = await asyncio.gather(*asked)
        assert [code(answer) for answer in answers] == [""] * 20
        assert len({answer.body for answer in answers}) == 1
        (computed,) = [answer for answer in answers if "idempotent-replayed" not in answer.headers]
        assert computed.headers["x-ratelimit-remaining-requests"] == "9"
        await fleet.usage_rows(1)
        later = [await fleet.post(BODY) for _ in range(10)]
    # the other gateway may hold one or two on lease for a moment
    codes = [code(answer) for answer in later]
    served = codes.index("requests_per_minute")
    assert 7 <= served <= 9
    assert codes == [""] * served + ["requests_per_minute"] * (10 - served)


async def test_a_slot_of_a_dead_client_comes_back_on_the_other_gateway(fleet: Fleet) -> None:
    await bound(fleet, "concurrent_requests", 1)
    connection = await fleet.open({**BODY, "stream": True})
    submit = await fleet.gateways[0].dispatcher.submitted()
    fleet.gateways[0].dispatcher.place(submit, fleet.gateways[0].worker)
    assert code(await fleet.post(BODY, gateway=1)) == "concurrent_requests"
    connection.close()
    with echoing(fleet):
        for _ in range(100):
            answer = await fleet.post(BODY, gateway=1)
            if answer.status == 200:
                break
            await asyncio.sleep(0.1)
    assert code(answer) == ""
