"""A tenant's quotas over two gateways and a real store: nothing over-admits, a refusal takes nothing."""

import asyncio
import json
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from devservices.valkey import ValkeyServer
from gateway.errors import ApiError
from gateway.quotas.quotas import Quotas, Reservation
from tests.gateway.quota_gateways import demand, end, grant, level_tokens, limit, quotas_started, settled


async def outcomes(*asking) -> tuple[list[Reservation], list[ApiError]]:
    results = await asyncio.gather(*asking, return_exceptions=True)
    unexpected = [result for result in results if not isinstance(result, Reservation | ApiError)]
    assert not unexpected
    taken = [result for result in results if isinstance(result, Reservation)]
    return taken, [result for result in results if isinstance(result, ApiError)]


@pytest.mark.parametrize("needed", [10, 37])
async def test_200_at_once_never_pass_a_bucket_of_1000_tokens(valkey: ValkeyServer, needed: int) -> None:
    of = grant(limit("tokens_per_minute", 1_000, burst=1_000))
    async with quotas_started(valkey.url) as one, quotas_started(valkey.url) as two:
        asking = [(one, two)[at % 2].reserve(demand(of, needed)) for at in range(200)]
        taken, refused = await outcomes(*asking)
        # What one gateway has leased and did not need is not the other's at once.
        assert 0.9 * (1_000 // needed) <= len(taken) <= 1_000 // needed
        assert {error.code for error in refused} == {"tokens_per_minute"}
        for reservation in taken:
            reservation.cancel()
        await settled([one, two])
        async with Redis.from_url(valkey.url) as client:  # full again: nobody who was refused took anything
            assert await level_tokens(client, of, "tokens_per_minute") == 1_000


async def test_a_refusal_by_one_limit_takes_nothing_of_the_others(valkey: ValkeyServer) -> None:
    of = grant(
        limit("tokens_per_minute", 1_000),
        limit("requests_per_minute", 60),
        limit("concurrent_requests", 3),
    )
    async with quotas_started(valkey.url) as quotas:
        taken, refused = await outcomes(*[quotas.reserve(demand(of)) for _ in range(20)])
        assert len(taken) == 3
        assert {error.code for error in refused} == {"concurrent_requests"}
        await settled([quotas])
        async with Redis.from_url(valkey.url) as client:
            assert 970 <= await level_tokens(client, of, "tokens_per_minute") < 975
            assert 57 <= await level_tokens(client, of, "requests_per_minute") < 58


async def test_what_was_not_used_is_there_again_at_once(valkey: ValkeyServer) -> None:
    of = grant(limit("tokens_per_minute", 1_000), limit("concurrent_requests", 1))
    async with quotas_started(valkey.url) as quotas:
        for _ in range(20):
            reservation = await quotas.reserve(demand(of, 300, 200))
            end(reservation, 10, 5)
            end(reservation, 10, 5)
            reservation.cancel()
        await settled([quotas])
        async with Redis.from_url(valkey.url) as client:
            assert 700 <= await level_tokens(client, of, "tokens_per_minute") < 710


async def test_requests_are_given_back_only_where_nothing_ran(valkey: ValkeyServer) -> None:
    of = grant(limit("requests_per_minute", 2))
    async with quotas_started(valkey.url) as quotas:
        for _ in range(5):
            (await quotas.reserve(demand(of))).cancel()
        for _ in range(2):
            end(await quotas.reserve(demand(of)))
        with pytest.raises(ApiError) as caught:
            await quotas.reserve(demand(of))
        assert caught.value.code == "requests_per_minute"
        assert caught.value.limit is not None
        assert caught.value.limit.clears_in_ms is not None
        assert caught.value.retry_after_ms is not None
        assert 25_000 < caught.value.limit.clears_in_ms <= 30_000
        assert 25_000 < caught.value.retry_after_ms <= 36_000


async def test_more_than_was_expected_is_a_debt_that_is_repaid(valkey: ValkeyServer) -> None:
    of = grant(limit("tokens_per_minute", 600))
    async with quotas_started(valkey.url) as quotas:
        reservation = await quotas.reserve(demand(of, 100, 100))
        for produced in range(0, 900, 10):
            reservation.produced(produced)
        end(reservation, 100, 900)
        await settled([quotas])
        async with Redis.from_url(valkey.url) as client:
            assert -400 <= await level_tokens(client, of, "tokens_per_minute") < -395
        with pytest.raises(ApiError) as caught:
            await quotas.reserve(demand(of, 10))
        assert caught.value.limit is not None
        assert caught.value.limit.clears_in_ms is not None
        assert 39_000 <= caught.value.limit.clears_in_ms <= 41_000


async def test_a_request_that_never_fits_is_no_matter_of_waiting(valkey: ValkeyServer) -> None:
    of = grant(limit("tokens_per_minute", 1_000))
    async with quotas_started(valkey.url) as quotas:
        with pytest.raises(ApiError) as caught:
            await quotas.reserve(demand(of, 900, 200))
    assert (caught.value.status, caught.value.code) == (400, "request_exceeds_quota")
    assert caught.value.retry_after_ms is None


async def test_headers_say_what_is_left_of_the_narrowest_limit(valkey: ValkeyServer) -> None:
    of = grant(
        limit("tokens_per_minute", 100_000),
        limit("tokens_per_minute", 1_000, scope="model", model="m", subject="m"),
        limit("tokens_per_minute", 10, scope="model", model="other", subject="other"),
        limit("requests_per_minute", 60),
    )
    async with quotas_started(valkey.url) as quotas:
        reservation = await quotas.reserve(demand(of, 100, 100))
        assert dict(reservation.headers) == {
            b"x-ratelimit-limit-tokens": b"1000",
            b"x-ratelimit-remaining-tokens": b"800",
            b"x-ratelimit-reset-tokens": b"12s",
            b"x-ratelimit-limit-requests": b"60",
            b"x-ratelimit-remaining-requests": b"59",
            b"x-ratelimit-reset-requests": b"1s",
            b"ratelimit-policy": b'"tokens";q=1000;w=60, "requests";q=60;w=60',
            b"ratelimit": b'"tokens";r=800;t=12, "requests";r=59;t=1',
        }
        with pytest.raises(ApiError) as caught:
            await quotas.reserve(demand(of, 900))
        headers = dict(caught.value.headers)
        assert headers[b"x-ratelimit-remaining-tokens"] in (b"800", b"801")
        told = json.loads(headers[b"x-sluice-limit"])
        assert (told["scope"], told["subject"], told["limit"]) == ("model", "m", 1_000)


async def test_the_common_path_asks_no_store(valkey: ValkeyServer) -> None:
    of = grant(
        limit("tokens_per_minute", 10_000_000),
        limit("requests_per_minute", 100_000),
        limit("concurrent_requests", 1_000),
    )
    async with quotas_started(valkey.url) as quotas, Redis.from_url(valkey.url) as client:
        for _ in range(100):
            end(await quotas.reserve(demand(of)))
            await asyncio.sleep(0.005)
        before = await _calls(client)
        held = []
        for _ in range(100):
            held.append(await quotas.reserve(demand(of)))
            await asyncio.sleep(0.002)
        assert await _calls(client) - before < 20
        assert _synchronous(quotas) < 20
        for reservation in held:
            end(reservation)


async def _calls(client: Redis) -> int:
    return int((await client.info("commandstats"))["cmdstat_evalsha"]["calls"])


def _synchronous(quotas: Quotas) -> float:
    return float(quotas._metrics.synchronous._value.get())


async def test_counters_that_cannot_be_read_are_one_tenants_trouble(valkey: ValkeyServer) -> None:
    # Given a key of one tenant that holds something else
    broken, sound = grant(limit("tokens_per_minute", 1_000)), grant(limit("tokens_per_minute", 1_000))
    key = f"sluice:quota:{{{broken.tenant_id}}}:tokens_per_minute:::"
    async with quotas_started(valkey.url) as quotas, Redis.from_url(valkey.url) as client:
        await client.set(key, "not a bucket")
        # When it asks again and again
        for _ in range(20):
            with pytest.raises(ApiError) as caught:
                await quotas.reserve(demand(broken))
            # Then it hears what is wrong, and is granted nothing
            assert (caught.value.status, caught.value.code) == (503, "overloaded")
            assert caught.value.limit is not None
            assert (caught.value.limit.name, caught.value.limit.scope) == ("quota_store", "tenant")
        # And for the others the store is where it was
        assert quotas._store.state == "ok"
        end(await quotas.reserve(demand(sound)))
        # And once somebody has looked, it is served
        await client.delete(key)
        end(await quotas.reserve(demand(broken)))


async def test_a_limit_that_is_lowered_is_that_low_at_once(valkey: ValkeyServer) -> None:
    # Given two gateways that serve a tenant from their leases
    tenant_id = uuid4()
    wide = grant(limit("tokens_per_minute", 60_000), tenant_id=tenant_id)
    async with quotas_started(valkey.url) as one, quotas_started(valkey.url) as two:
        for _ in range(100):
            for quotas in (one, two):
                end(await quotas.reserve(demand(wide, 20)), 20)
            await asyncio.sleep(0.005)
        assert any(
            account.lease.left > 200
            for quotas in (one, two)
            for account in quotas._tenants[tenant_id].sets.accounts.values()
        )
        # When the limit becomes a hundred tokens a minute
        narrow = grant(limit("tokens_per_minute", 100), tenant_id=tenant_id)
        taken, _ = await outcomes(
            *[quotas.reserve(demand(narrow, 20)) for _ in range(10) for quotas in (one, two)]
        )
        # Then no more than a hundred are given out
        assert len(taken) <= 5
        for reservation in taken:
            end(reservation, 20)


async def test_refused_clients_are_told_to_come_one_after_the_other(valkey: ValkeyServer) -> None:
    of = grant(limit("tokens_per_minute", 600, burst=100))
    async with quotas_started(valkey.url) as quotas:
        taken, refused = await outcomes(*[quotas.reserve(demand(of, 100)) for _ in range(5)])
        assert len(taken) == 1
        told_ms = sorted(error.retry_after_ms or 0 for error in refused)
        # A hundred tokens come in ten seconds
        for number, wait_ms in enumerate(told_ms, start=1):
            assert 9_500 * number <= wait_ms <= 12_000 * number
        taken[0].cancel()
