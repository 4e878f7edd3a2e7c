"""Budgets: the worst case is held before a request runs, so that no budget is ever passed."""

import asyncio
import time
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from redis.asyncio import Redis

from devservices.valkey import ValkeyServer
from gateway.errors import ApiError
from gateway.quotas.quotas import Quotas
from tenants.contracts import KeyGrant
from tests.gateway.quota_gateways import (
    Books,
    demand,
    end,
    grant,
    killed_later,
    limit,
    quotas_started,
    settled,
)

DAY_MS = 86_400_000


async def kept(url: str, of: KeyGrant) -> dict[Any, Any]:
    async with Redis.from_url(url, decode_responses=True) as client:
        (key,) = [key async for key in client.scan_iter(f"sluice:quota:{{{of.tenant_id}}}:spend*")]
        return await client.hgetall(key)


@pytest.mark.parametrize("budget", [2_000, 200_000])
async def test_a_budget_is_used_up_and_never_passed(valkey: ValkeyServer, budget: int) -> None:
    """Of 210 micro-dollars that a request may cost, each costs 50."""
    of, spent = grant(limit("spend_per_day", budget)), 0
    refusals: list[ApiError] = []

    async def ask(quotas: Quotas) -> None:
        nonlocal spent
        try:
            reservation = await quotas.reserve(demand(of, 10, 100))
        except ApiError as error:
            refusals.append(error)
            return
        await asyncio.sleep(0)
        spent += 50
        assert spent <= budget
        end(reservation, 10, 20, 50)

    async with quotas_started(valkey.url) as one, quotas_started(valkey.url) as two:
        rounds = 0
        while not refusals or (spent < 0.9 * budget and rounds < budget // 1_000 + 40):
            rounds += 1
            await asyncio.gather(*[ask(quotas) for quotas in (one, two) * 20])
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # a refusal is not asked for again in the first quarter of a second
        await asyncio.gather(*[ask(quotas) for quotas in (one, two) * 20])
        await settled([one, two])
        assert 0.85 * budget <= spent <= budget
        assert await kept(valkey.url, of) == {"base": str(spent)}
    assert {error.code for error in refusals} == {"insufficient_quota"}
    assert (b"x-should-retry", b"false") in refusals[-1].headers
    assert refusals[-1].limit is not None
    assert refusals[-1].limit.clears_in_ms == pytest.approx(DAY_MS - time.time() * 1000 % DAY_MS, abs=5_000)


async def test_a_counter_that_is_missing_is_made_from_the_ledger(valkey: ValkeyServer) -> None:
    of, books = grant(limit("spend_per_month", 1_000)), Books(700)
    async with quotas_started(valkey.url, books) as quotas:
        reservation = await quotas.reserve(demand(of, 10, 100))
        with pytest.raises(ApiError) as caught:
            await quotas.reserve(demand(of, 10, 100))
        assert caught.value.code == "insufficient_quota"
        end(reservation, 10, 0, 10)
        end(await quotas.reserve(demand(of, 10, 100)), 10, 0, 10)
    ((tenant_id, since),) = books.asked
    assert tenant_id == of.tenant_id
    assert (since.day, since.hour, since.minute) == (1, 0, 0)


async def test_without_the_ledger_nothing_is_spent(valkey: ValkeyServer) -> None:
    class Closed(Books):
        async def spend_since(self, *_: object, **__: object) -> int:
            raise ConnectionError("no ledger")

    async with quotas_started(valkey.url, Closed()) as quotas:
        with pytest.raises(ApiError) as caught:
            await quotas.reserve(demand(grant(limit("spend_per_day", 1_000))))
    assert (caught.value.status, caught.value.code) == (503, "overloaded")


async def test_requests_do_not_wait_for_a_slow_ledger_one_after_the_other(valkey: ValkeyServer) -> None:
    class Slow(Books):
        async def spend_since(self, tenant_id: UUID, since: datetime, **_: object) -> int:
            self.asked.append((tenant_id, since))
            await asyncio.sleep(0.2)
            raise TimeoutError

    of, books = grant(limit("spend_per_day", 1_000)), Slow()
    async with quotas_started(valkey.url, books) as quotas:
        asking = [quotas.reserve(demand(of)) for _ in range(20)]
        results = await asyncio.gather(*asking, return_exceptions=True)
    assert {getattr(result, "status", None) for result in results} == {503}
    assert len(books.asked) == 1


async def test_more_than_a_whole_budget_is_no_matter_of_waiting(valkey: ValkeyServer) -> None:
    async with quotas_started(valkey.url) as quotas:
        with pytest.raises(ApiError) as caught:
            await quotas.reserve(demand(grant(limit("spend_per_day", 200)), 10, 100))
    assert (caught.value.status, caught.value.code) == (400, "request_exceeds_quota")


async def test_what_a_killed_gateway_held_counts_as_spent(valkey: ValkeyServer) -> None:
    of = grant(limit("spend_per_day", 1_000))
    async with killed_later(valkey.url) as quotas:
        for _ in range(3):
            await quotas.reserve(demand(of, 10, 100))
    async with quotas_started(valkey.url) as quotas:
        await quotas.reserve(demand(of, 10, 100))
        with pytest.raises(ApiError):
            await quotas.reserve(demand(of, 10, 100))
