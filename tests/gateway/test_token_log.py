"""What was released can be read again: in order, complete, by whoever follows, and by nobody else."""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from devservices.valkey import ValkeyServer
from gateway.answer_parts import PromptRow, Row
from gateway.errors import ApiError
from gateway.token_log.entries import Entry, Failed, Opened
from gateway.token_log.limits import LogLimits
from gateway.token_log.log import TokenLog
from gpuworker.wire.messages import TokenLogprobs
from tests.gateway.token_logs import QUICK, Request, end, nothing, running, token, until


@pytest_asyncio.fixture
async def log(valkey: ValkeyServer) -> AsyncIterator[TokenLog]:
    async with running(valkey.url, limits=LogLimits()) as log:
        yield log


async def test_a_follower_gets_every_part_as_it_was(log: TokenLog) -> None:
    request = Request()
    likely = TokenLogprobs(7, -0.25, [(7, -0.25), (9, -1.5)])
    parts: list[Entry] = [PromptRow(0, 1, [likely]), Row(0, 2, "né 🌍", [likely, likely]), token(2), end(3)]
    writer = request.write(log)
    for part in parts:
        writer.append(part, nothing)
    assert await writer.close()
    reading = request.follow(log)
    assert await reading.ended() == parts
    opened = reading.entries[0]
    assert isinstance(opened, Opened)
    assert (opened.dialect, opened.attempt, opened.owner) == ("openai.chat", 1, "gateway-a")
    assert opened == await request.find(log)
    assert reading.lost == []


async def test_a_failure_comes_back_as_the_error_it_was(log: TokenLog) -> None:
    request = Request()
    writer = request.write(log)
    error = ApiError("overloaded", "full", param="model", retry_after_ms=2_500)
    writer.append(Failed.of(error), nothing)
    assert await writer.close()
    (failed,) = await request.follow(log).ended()
    assert isinstance(failed, Failed)
    again = failed.error()
    assert again.envelope() == error.envelope()
    assert (again.status, again.headers) == (error.status, error.headers)


async def test_nothing_is_released_before_it_is_in_valkey(log: TokenLog, valkey: ValkeyServer) -> None:
    request = Request()
    with redis.Redis.from_url(valkey.url) as client:
        writer = request.write(log)
        blocks_at_release: list[int] = []
        for number in range(5):
            # A synchronous question: nothing of ours runs before its answer.
            writer.append(
                token(number),
                lambda: blocks_at_release.append(int(client.xlen(request.key))),
            )
            await asyncio.sleep(0.01)
        writer.append(end(5), nothing)
        assert await writer.close()
    assert blocks_at_release == sorted(blocks_at_release)
    assert all(found >= number for number, found in enumerate(blocks_at_release, start=1))


async def test_what_waits_is_written_in_one_step(log: TokenLog, valkey: ValkeyServer) -> None:
    requests = [Request() for _ in range(50)]
    writers = [request.write(log) for request in requests]
    with redis.Redis.from_url(valkey.url) as client:
        for writer in writers:
            for number in range(20):
                writer.append(token(number), nothing)
        await until(lambda: not log.unconfirmed_bytes)
        assert {client.xlen(request.key) for request in requests} == {1}
    for request, writer in zip(requests, writers, strict=True):
        writer.append(end(20), nothing)
        assert await writer.close()
        assert len(await request.follow(log).ended()) == 21


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["append", "follow", "pause", "resume", "wait"])),
        max_size=120,
    )
)
def test_order_and_completeness_whatever_the_interleaving(
    valkey: ValkeyServer, steps: list[tuple[int, str]]
) -> None:
    async def interleave() -> None:
        limits = LogLimits()
        async with running(valkey.url, "a", limits) as log, running(valkey.url, "b", limits) as other:
            requests = [Request() for _ in range(4)]
            writers = [request.write(log) for request in requests]
            written = [0] * 4
            released: list[list[int]] = [[] for _ in requests]
            readings = [[request.follow(other)] for request in requests]
            for which, step in steps:
                if step == "append":
                    writers[which].append(
                        token(written[which]), partial(released[which].append, written[which])
                    )
                    written[which] += 1
                elif step == "follow":
                    readings[which].append(requests[which].follow(random.choice([log, other])))
                elif step == "pause":
                    readings[which][-1].follow.pause()
                elif step == "resume":
                    readings[which][-1].follow.resume()
                else:
                    await asyncio.sleep(which * 0.003)
            for which, writer in enumerate(writers):
                writer.append(end(written[which]), nothing)
                assert await writer.close()
                assert released[which] == list(range(written[which]))
                for reading in readings[which]:
                    reading.follow.resume()
                    expected = [*map(token, range(written[which])), end(written[which])]
                    assert await reading.ended() == expected
                    assert reading.lost == []
            assert log.unconfirmed_bytes == 0

    asyncio.run(interleave())


async def test_cut_200_times_at_random(log: TokenLog, valkey: ValkeyServer) -> None:
    """Whoever saw k entries finds those k in the log, at once, and then the rest."""
    rows = 1_000
    request = Request()
    shown: list[int] = []
    writer = request.write(log)

    async def generate() -> None:
        for number in range(rows):
            writer.append(token(number), partial(shown.append, number))
            if number % random.randint(1, 5) == 0:
                await asyncio.sleep(0)
        writer.append(end(rows), nothing)
        assert await writer.close()

    async def cut_and_resume(other: TokenLog) -> None:
        cut = random.randrange(rows)
        await until(lambda: len(shown) >= cut, 20)
        seen = [token(number) for number in shown]
        reading = request.follow(other)
        entries = await reading.ended(20)
        assert (reading.lost, entries[: len(seen)]) == ([], seen)
        assert entries == [*map(token, range(rows)), end(rows)]
        assert reading.lost == []

    async with running(valkey.url, "gateway-b", LogLimits()) as other, asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(cut_and_resume(other))
        group.create_task(generate())
    assert shown == list(range(rows))


async def test_a_slow_or_broken_follower_does_not_stop_the_others(
    log: TokenLog, caplog: pytest.LogCaptureFixture
) -> None:
    request = Request()
    writer = request.write(log)
    quick, slow = request.follow(log), request.follow(log)
    slow.pause_at = 10
    broken_lost: list[str] = []

    def broken(_: Entry) -> None:
        raise RuntimeError("a defect of one stream")

    log.follow(request.tenant_id, request.request_id, 1, request.data_key, broken, broken_lost.append)
    await until(lambda: len(slow.entries) == 1)
    for number in range(500):
        writer.append(token(number), nothing)
    writer.append(end(500), nothing)
    assert await writer.close()
    assert len(await quick.ended()) == 501
    await asyncio.sleep(3 * QUICK.poll_s)
    assert len(slow.entries) == 10
    assert broken_lost == ["failed"]
    assert "a defect of one stream" in caplog.text
    slow.follow.resume()
    assert await slow.ended() == quick.parts


async def test_who_is_told_that_somebody_listens(log: TokenLog, valkey: ValkeyServer) -> None:
    request = Request()
    request.write(log)
    where = request.tenant_id, request.request_id
    assert not await log.has_listeners(*where)
    async with running(valkey.url, "gateway-b") as other:
        reading = request.follow(other)
        await until(lambda: len(reading.entries) == 1)
        for _ in range(3):
            assert await log.has_listeners(*where)
            await asyncio.sleep(QUICK.listener_ttl_s / 2)
        reading.follow.close()
        await asyncio.sleep(QUICK.listener_ttl_s + 0.2)
        assert not await log.has_listeners(*where)
        assert not await log.is_cancelled(*where)
        await other.cancel(*where)
        assert await log.is_cancelled(*where)
        assert await log.is_alive("gateway-b")
    assert not await log.is_alive("gateway-b")
    assert not await other.is_alive("gateway-a")  # it runs no more, and asks nobody


async def test_everything_expires(valkey: ValkeyServer) -> None:
    request, ended = Request(), Request()
    limits = LogLimits()
    with redis.Redis.from_url(valkey.url) as client:
        client.flushdb()
        async with running(valkey.url, limits=limits) as log:
            request.write(log, deadline_s=100)
            writer = ended.write(log, deadline_s=100)
            writer.append(token(0), nothing)
            await until(lambda: not log.unconfirmed_bytes)
            writer.append(end(1), nothing)
            assert await writer.close()
            await ended.follow(log).ended()
            await log.cancel(ended.tenant_id, ended.request_id)
            left_s = {key.decode(): int(client.pttl(key)) / 1000 for key in client.scan_iter()}
        assert 698 < left_s.pop(request.key) <= 700
        assert 598 < left_s.pop(ended.key) <= 600
        assert 2 < left_s.pop(ended.key + ":listener") <= 4
        assert 598 < left_s.pop(ended.key + ":cancelled") <= 600
        assert 1 < left_s.pop("sluice:log:owner:gateway-a") <= 3
        assert left_s == {}
