"""The store is paused, killed and emptied under load: bounded grants, and every token is settled.

`make faults SUITE=store` pauses it for 45 s and for 120 s (`SLUICE_FAULT_SECONDS`), with the figures printed.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from devservices.valkey import ValkeyServer
from gateway.errors import ApiError
from tenants.contracts import KeyGrant
from tests.gateway.quota_gateways import (
    PATIENT,
    Books,
    demand,
    end,
    grant,
    level_tokens,
    limit,
    quotas_started,
    settled,
)
from tests.gateway.quota_load import Load

PER_SECOND = 1_000
CAP = 20_000
LEASED = CAP // 5  # at most, of all gateways
OPEN_S = 60.0  # of full shares; then they are halved
OUTAGES_S = os.environ.get("SLUICE_FAULT_SECONDS")
LENGTHS = (
    [float(text) for text in OUTAGES_S.split(",")]
    if OUTAGES_S
    else [3.0, pytest.param(20.0, marks=pytest.mark.slow)]
)
QUICK = replace(PATIENT, answer_timeout_s=0.1, connect_timeout_s=0.2, beat_s=0.2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """Of this module's own: it is paused and emptied."""
    server = ValkeyServer.start(tmp_path_factory.mktemp("quota-store"), durable=False)
    yield server
    os.kill(server.pid, signal.SIGCONT)
    server.stop()


async def bucket(url: str, of: KeyGrant) -> tuple[int, int]:
    """Sixty-thousandths of a token, and when that was."""
    async with Redis.from_url(url) as client:
        level, at = await client.hmget(f"sluice:quota:{{{of.tenant_id}}}:tokens_per_minute:::", "level", "at")
    assert level is not None
    assert at is not None
    return int(level), int(at)


@pytest.mark.parametrize("outage_s", LENGTHS)
async def test_paused_under_load(store: ValkeyServer, outage_s: float) -> None:
    """Twice as much is asked for as the bucket gives; the budget is one of hours, as most are."""
    rate, budget = PER_SECOND * 60, 2_000_000
    of = grant(limit("tokens_per_minute", rate, burst=CAP), limit("spend_per_day", budget))
    async with quotas_started(store.url, bounds=QUICK) as one, quotas_started(store.url, bounds=QUICK) as two:
        await asyncio.sleep(0.5)  # both know of each other
        end(await one.reserve(demand(of, 10)), 19_000)  # a debt is nobody's share of what is given out
        await settled([one])
        one._tenants.clear()
        level, since = await bucket(store.url, of)
        load = Load([one, two], of, 2 * PER_SECOND / 50)
        await load.run(2.0 if outage_s < 10 else 5.0)
        before = load.tokens
        os.kill(store.pid, signal.SIGSTOP)
        await load.run(min(outage_s, OPEN_S))
        assert {status for status, _ in load.errors} <= {429}
        await load.run(max(outage_s - OPEN_S, 0.0))
        if outage_s > OPEN_S + 2:
            with pytest.raises(ApiError) as caught:
                await one.reserve(demand(of, 10, klass="batch"))
            assert (caught.value.status, caught.value.retry_after_ms) == (503, 30_000)
        os.kill(store.pid, signal.SIGCONT)
        meanwhile = load.tokens - before
        await load.run(2.0)
        fair = PER_SECOND * (min(outage_s, OPEN_S) + max(outage_s - OPEN_S, 0.0) / 2)
        print(
            f"paused for {outage_s:.0f} s: {meanwhile} tokens of {fair:.0f} that both gateways' shares give, "
            f"slowest answer {load.slowest_s * 1000:.0f} ms, {load.micro_usd} of {budget} micro-dollars, "
            f"refused: {dict(load.errors)}"
        )
        assert {status for status, _ in load.errors} <= {429}
        assert load.slowest_s < 10 * QUICK.answer_timeout_s
        # Beside their shares both have what they had leased.
        assert 0.7 * fair < meanwhile < 1.1 * fair + LEASED
        assert load.micro_usd <= budget
        await settled([one, two])
        after, until = await bucket(store.url, of)
        expected = level + (until - since) * rate - load.tokens * 60_000
        if expected < CAP * 60_000:
            assert after == expected
        else:  # more was refilled in vain than was used: no debt is left
            assert 0.8 * CAP * 60_000 < after <= CAP * 60_000


async def test_killed_and_started_again_without_its_data(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = ValkeyServer.start(tmp_path_factory.mktemp("killed-store"), durable=False)
    again: asyncio.subprocess.Process | None = None
    try:
        of = grant(
            limit("tokens_per_minute", PER_SECOND * 60, burst=CAP),
            limit("concurrent_requests", 50),
            limit("spend_per_day", 5_000),
        )
        books = Books()
        bounds = replace(QUICK, learning_s=1.0)
        async with (
            quotas_started(server.url, books, bounds) as one,
            quotas_started(server.url, books, bounds) as two,
        ):
            await asyncio.sleep(1.2)
            load = Load([one, two], of, 2 * PER_SECOND / 50)
            await load.run(1.0)
            os.kill(server.pid, signal.SIGKILL)
            await load.run(2.0)
            again = await asyncio.create_subprocess_exec(
                *server.command, cwd=server.home, env=server.environment, stdout=subprocess.DEVNULL
            )
            await load.run(4.0)
            assert load.tokens < 2 * CAP + 1.1 * PER_SECOND * 7
            assert load.micro_usd <= 5_000
            assert {code for status, code in load.errors if status != 429} <= {"overloaded"}
            assert (
                load.errors[503, "overloaded"] < 2 * PER_SECOND / 50 * 1.5
            )  # while budgets are learnt again
    finally:
        if again is not None:
            again.terminate()
            await again.wait()
        server.stop()


async def test_after_an_outage_the_store_is_told_again_what_is_held(store: ValkeyServer) -> None:
    """It may be a replica now that lacks the last calls, of which its epoch says nothing."""
    of = grant(limit("spend_per_day", 1_000))
    async with quotas_started(store.url, bounds=QUICK) as quotas, Redis.from_url(store.url) as client:
        held = [await quotas.reserve(demand(of, 10, 100))]
        (key,) = [key async for key in client.scan_iter(f"sluice:quota:{{{of.tenant_id}}}:spend*")]
        before = await client.dump(key)
        assert before is not None
        held += [await quotas.reserve(demand(of, 10, 100)) for _ in range(3)]
        await asyncio.sleep(2 * QUICK.expiry_s)  # all was reported
        await client.restore(key, 0, before, replace=True)
        os.kill(store.pid, signal.SIGSTOP)
        await asyncio.sleep(2.5)
        assert quotas._store.is_down
        os.kill(store.pid, signal.SIGCONT)
        await asyncio.sleep(1.0)
        kept: list[Any] = await client.hvals(key)
        (report,) = [value for value in kept if b":" in value]
        assert report.startswith(b"0:840:")
        for reservation in held:
            reservation.cancel()


async def test_emptied_while_tokens_slots_and_money_are_held(store: ValkeyServer) -> None:
    of = grant(
        limit("tokens_per_minute", 600),
        limit("concurrent_requests", 3),
        limit("spend_per_day", 1_000),
    )
    books = Books()
    async with (
        quotas_started(store.url, books, QUICK) as one,
        quotas_started(store.url, books, replace(QUICK, learning_s=1.0)) as two,
    ):
        held = [await one.reserve(demand(of, 100, 50)) for _ in range(3)]
        async with Redis.from_url(store.url) as client:
            await client.flushall()
            await asyncio.sleep(1.5)
            assert await client.zcard(f"sluice:quota:{{{of.tenant_id}}}:concurrent_requests:::") == 3
            assert 150 <= await level_tokens(client, of, "tokens_per_minute") < 170
        for quotas in (one, two):
            with pytest.raises(ApiError) as caught:
                await quotas.reserve(demand(of, 10, 10))
            assert caught.value.code == "concurrent_requests"
        held.pop().cancel()
        await asyncio.sleep(0.4)  # a refusal is not asked for again in the first quarter of a second
        with pytest.raises(ApiError) as caught:  # 400 of 1,000 are held, and 700 asked for
            await two.reserve(demand(of, 0, 350))
        assert caught.value.code in ("insufficient_quota", "tokens_per_minute")
        for reservation in held:
            end(reservation, 100, 50, 200)
        await settled([one, two])
        async with Redis.from_url(store.url) as client:
            kept = await client.hgetall(f"sluice:quota:{{{of.tenant_id}}}:spend_per_day::")
    assert kept is not None
