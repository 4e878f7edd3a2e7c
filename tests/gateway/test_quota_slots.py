"""Concurrent requests: no slot is lost with the request, nor with the gateway that held it."""

import asyncio
import time
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from devservices.valkey import ValkeyServer
from gateway.errors import ApiError
from gateway.quotas.quotas import Quotas
from tenants.contracts import KeyGrant
from tests.gateway.quota_gateways import PATIENT, demand, end, grant, killed_later, limit, quotas_started

SHORT = replace(PATIENT, slot_ttl_s=0.9, slot_renew_s=0.3, expiry_s=0.1)


async def test_two_gateways_never_have_more_open_than_the_limit(valkey: ValkeyServer) -> None:
    of = grant(limit("concurrent_requests", 5))
    open_now = most = served = 0
    codes: set[str] = set()

    async def ask(quotas: Quotas) -> None:
        nonlocal open_now, most, served
        try:
            reservation = await quotas.reserve(demand(of))
        except ApiError as error:
            codes.add(error.code)
            return
        open_now += 1
        most, served = max(most, open_now), served + 1
        await asyncio.sleep(0.01)
        open_now -= 1
        end(reservation)
        reservation.cancel()

    async with quotas_started(valkey.url) as one, quotas_started(valkey.url) as two:
        for _ in range(10):
            await asyncio.gather(*[ask(quotas) for quotas in (one, two) * 10])
            await asyncio.sleep(0.05)
    assert most <= 5
    assert codes == {"concurrent_requests"}
    assert served >= 40


async def test_a_killed_gateways_slots_come_back_and_a_live_ones_stay(valkey: ValkeyServer) -> None:
    of = grant(limit("concurrent_requests", 4))
    async with quotas_started(valkey.url, bounds=SHORT) as live:
        kept = [await live.reserve(demand(of)) for _ in range(2)]
        async with killed_later(valkey.url, bounds=SHORT) as killed:
            for _ in range(2):
                await killed.reserve(demand(of))
        killed_at = time.monotonic()
        with pytest.raises(ApiError):
            await live.reserve(demand(of))
        others = [await _taken(live, of), await _taken(live, of)]
        assert time.monotonic() - killed_at < SHORT.slot_ttl_s + 1
        await asyncio.sleep(2 * SHORT.slot_ttl_s)
        async with Redis.from_url(valkey.url) as client:
            assert await client.zcard(f"sluice:quota:{{{of.tenant_id}}}:concurrent_requests:::") == 4
        with pytest.raises(ApiError):
            await live.reserve(demand(of))
        for reservation in (*kept, *others):
            reservation.cancel()


async def _taken(quotas: Quotas, of: KeyGrant):
    for _ in range(100):
        try:
            return await quotas.reserve(demand(of))
        except ApiError:
            await asyncio.sleep(0.05)
    raise AssertionError("the slots of a dead gateway did not come back")
