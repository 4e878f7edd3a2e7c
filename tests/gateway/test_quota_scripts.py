"""The two scripts alone: executed once whatever is repeated, all or nothing, exact to a part of a token."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest_asyncio
from redis.asyncio import Redis

from devservices.valkey import ValkeyServer
from gateway.quotas.scripts import RESERVE, SETTLE, Script

RATE = 60  # a minute: one sixty-thousandth of a token is one millisecond
TTL_MS = 60_000


class Tenant:
    """A store's client as one gateway calls it."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.tag = f"q:{{{uuid4()}}}:"

    async def call(
        self, script: Script, sequence: int, keys: list[str], *arguments: Any, gateway: str = "g1"
    ) -> list[Any]:
        names = [self.tag + name for name in ("epoch", f"call:{gateway}", *keys)]
        reply: Any = await self.client.eval(
            script.text, len(names), *names, "epoch-1", sequence, gateway, *arguments
        )
        return list(reply)

    async def field(self, key: str, name: str) -> bytes:
        kept: Any = await self.client.hget(self.tag + key, name)
        return bytes(kept or b"")

    async def level(self, key: str) -> int:
        return int(await self.field(key, "level"))


@pytest_asyncio.fixture
async def tenant(valkey: ValkeyServer) -> AsyncIterator[Tenant]:
    async with Redis.from_url(valkey.url) as client:
        yield Tenant(client)


async def test_a_call_that_is_repeated_is_answered_again_and_executed_once(tenant: Tenant) -> None:
    ask = ("bucket", 1_000, RATE, 300, 100, "")
    first = await tenant.call(RESERVE, 1, ["tokens"], *ask)
    assert first[3:5] == [300, 700]
    assert await tenant.call(RESERVE, 1, ["tokens"], *ask) == first
    assert (await tenant.call(RESERVE, 2, ["tokens"], *ask))[3:5] == [300, 400]
    settled = await tenant.call(SETTLE, 3, ["tokens"], "bucket", 1_000, RATE, 50, 0)
    for _ in range(3):
        assert await tenant.call(SETTLE, 3, ["tokens"], "bucket", 1_000, RATE, 50, 0) == settled
    assert settled[3] == 450


async def test_what_comes_too_late_changes_nothing(tenant: Tenant) -> None:
    await tenant.call(RESERVE, 5, ["tokens"], "bucket", 1_000, RATE, 300, 100, "")
    late = await tenant.call(SETTLE, 4, ["tokens"], "bucket", 1_000, RATE, -500, 0)
    assert late[0] == -2
    assert 42_000_000 <= await tenant.level("tokens") < 43_000_000


async def test_numbers_of_one_gateway_are_not_those_of_another(tenant: Tenant) -> None:
    for gateway in ("g1", "g2"):
        await tenant.call(RESERVE, 1, ["tokens"], "bucket", 1_000, RATE, 100, 100, "", gateway=gateway)
    assert 48_000_000 <= await tenant.level("tokens") < 49_000_000


async def test_one_limit_without_room_and_none_gives_anything(tenant: Tenant) -> None:
    keys = ["tokens", "slots", "spend"]
    ask = (
        "bucket",
        1_000,
        RATE,
        300,
        100,
        "",
        "slots",
        0,
        TTL_MS,
        1,
        1,
        1,
        "spend",
        900,
        TTL_MS,
        5,
        5,
        "0:0",
    )
    await tenant.call(SETTLE, 1, ["spend"], "spend", 900, TTL_MS, "0:0", "0")
    granted, *_ = reply = await tenant.call(RESERVE, 2, keys, *ask)
    assert granted == 0
    assert [reply[3], reply[7], reply[11]] == [0, 0, 0]
    assert await tenant.level("tokens") == 60_000_000
    assert await tenant.client.zcard(tenant.tag + "slots") == 0
    assert (await tenant.field("spend", "g1")).startswith(b"0:0:")


async def test_debt_beyond_a_whole_bucket_is_paid_later(tenant: Tenant) -> None:
    *_, left, unpaid = await tenant.call(SETTLE, 1, ["tokens"], "bucket", 100, RATE, -250, 0)
    assert (left, unpaid) == (-100, 50)


async def test_what_was_refilled_in_vain_while_nobody_was_heard_pays_what_was_used(tenant: Tenant) -> None:
    await tenant.call(RESERVE, 1, ["tokens"], "bucket", 1_000, 60_000, 0, 0, "")
    at = int(await tenant.field("tokens", "at"))
    await tenant.client.hset(tenant.tag + "tokens", "at", str(at - 120_000))  # two minutes: twice its cap
    await tenant.call(RESERVE, 2, ["tokens"], "bucket", 1_000, 60_000, 0, 0, "")  # what hung in a buffer
    *_, left, _ = await tenant.call(SETTLE, 3, ["tokens"], "bucket", 1_000, 60_000, -1_500, 120_000)
    assert left == 1_000
    *_, left, _ = await tenant.call(SETTLE, 4, ["tokens"], "bucket", 1_000, 60_000, -1_500, 0)
    assert -500 <= left < -400


async def test_what_goes_back_into_a_full_bucket_pays_what_others_used_meanwhile(tenant: Tenant) -> None:
    """As exactly as if the bucket had never been full: what went back was refilled in vain, too."""
    await tenant.call(RESERVE, 1, ["tokens"], "bucket", 1_000, 60_000, 400, 400, "")
    since = int(await tenant.field("tokens", "at")) - 1_000
    await tenant.client.hset(tenant.tag + "tokens", "at", str(since))
    await tenant.call(SETTLE, 2, ["tokens"], "bucket", 1_000, 60_000, 5, 0)
    await tenant.call(SETTLE, 1, ["tokens"], "bucket", 1_000, 60_000, -1_105, 1_000, gateway="g2")
    passed_ms = int(await tenant.field("tokens", "at")) - since
    assert await tenant.level("tokens") == (600 + passed_ms + 5 - 1_105) * 60_000


async def test_a_clock_that_steps_back_gives_nothing(tenant: Tenant) -> None:
    await tenant.call(RESERVE, 1, ["tokens"], "bucket", 1_000, 60_000, 1_000, 1_000, "")
    at = int(await tenant.field("tokens", "at"))
    await tenant.client.hset(tenant.tag + "tokens", mapping={"at": str(at + 3_600_000), "level": "0"})
    granted, *_ = await tenant.call(RESERVE, 2, ["tokens"], "bucket", 1_000, 60_000, 1, 1, "")
    assert granted == 0


async def test_a_gateway_silent_for_an_hour_is_folded_into_the_base_whole(tenant: Tenant) -> None:
    await tenant.call(SETTLE, 1, ["spend"], "spend", 1_000, TTL_MS, "200:300", "100", gateway="dead")
    spent = (await tenant.field("spend", "dead")).split(b":")
    old = f"200:300:{int(spent[2]) - 3_700_000}"
    await tenant.client.hset(tenant.tag + "spend", "dead", old)
    for sequence in (1, 2):
        *_, left, _ = await tenant.call(SETTLE, sequence, ["spend"], "spend", 1_000, TTL_MS, "0:50", "")
        assert left == 350
    assert await tenant.field("spend", "base") == b"600"
    assert not await tenant.field("spend", "dead")


async def test_a_bucket_that_expired_meanwhile_was_full(tenant: Tenant) -> None:
    *_, left, unpaid = await tenant.call(SETTLE, 1, ["tokens"], "bucket", 1_000, 60_000, -9_000, 10_000)
    assert (left, unpaid) == (1_000, 0)


async def test_a_clock_that_steps_back_refills_nothing_twice(tenant: Tenant) -> None:
    """As after a failover to a host whose clock is behind."""
    ask = ("bucket", 1_000, RATE, 1, 1, "")
    await tenant.call(RESERVE, 1, ["tokens"], "bucket", 1_000, RATE, 1_000, 1_000, "")
    seconds, _ = await tenant.client.time()
    for ahead_ms, kept_ms in ((10_000, 10_000), (10**12, 1_000_000)):  # at most until it would be full
        await tenant.client.hset(tenant.tag + "tokens", mapping={"level": 0, "at": seconds * 1000 + ahead_ms})
        assert (await tenant.call(RESERVE, 2 + ahead_ms, ["tokens"], *ask))[3] < 1
        at = int(await tenant.field("tokens", "at")) - seconds * 1000
        assert kept_ms <= at <= kept_ms + 5_000
        assert await tenant.level("tokens") == 0
