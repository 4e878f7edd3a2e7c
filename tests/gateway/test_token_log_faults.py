"""A token log is right or it is not there: whoever dies, whatever is swapped, however long it gets."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import redis

from devservices.valkey import ValkeyServer
from gateway.token_log.limits import LogLimits
from gateway.token_log.log import LogUnavailable, TokenLog
from tests.gateway.token_logs import QUICK, MortalValkey, Request, end, nothing, running, token, until


@pytest_asyncio.fixture
async def log(valkey: ValkeyServer) -> AsyncIterator[TokenLog]:
    async with running(valkey.url) as log:
        yield log


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalValkey]:
    server = MortalValkey(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.close()


# -- Valkey -----------------------------------------------------------------------------------------------


async def test_valkey_killed_and_back_in_time_costs_nothing(mortal: MortalValkey) -> None:
    limits = replace(QUICK, give_up_s=5.0, patience_s=5.0)
    async with running(mortal.url, limits=limits) as log, running(mortal.url, "b", limits) as other:
        requests = [Request() for _ in range(20)]
        writers = [request.write(log) for request in requests]
        readings = [request.follow(other) for request in requests]
        released: list[list[int]] = [[] for _ in requests]
        for number in range(300):
            for writer, mine in zip(writers, released, strict=True):
                writer.append(token(number), partial(mine.append, number))
            if number % 100 == 50:
                mortal.kill()
            if number % 100 == 70:
                assert not log.is_ready
                if number == 70:  # owners look dead to whoever comes back first
                    await asyncio.sleep(limits.owner_ttl_s + 0.5)
                mortal.start()
            await asyncio.sleep(0.003)
        for writer in writers:
            writer.append(end(300), nothing)
        assert all(await asyncio.gather(*(writer.close() for writer in writers)))
        assert released == [list(range(300))] * 20
        for reading in readings:
            assert await reading.ended() == [*map(token, range(300)), end(300)]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_valkey_away_too_long(mortal: MortalValkey, fault: signal.Signals) -> None:
    """The streams go on after a bounded wait; what was written of them is buried when Valkey returns."""
    async with running(mortal.url) as log, running(mortal.url, "b") as other:
        request, known = Request(), Request()
        writer = request.write(log)
        writer.append(token(0), nothing)
        known.write(log)
        await until(lambda: not log.unconfirmed_bytes)
        mortal.signal(fault)
        released: list[float] = []
        sent_at = time.monotonic()
        for number in range(1, 10):
            writer.append(token(number), lambda: released.append(time.monotonic() - sent_at))
        late = request.follow(other)
        await until(lambda: len(released) == 9)
        assert QUICK.give_up_s - 0.1 < released[0] <= released[-1] < QUICK.give_up_s + 0.3
        assert writer.lost == "unavailable"
        assert not log.is_ready
        assert not await log.has_listeners(request.tenant_id, request.request_id)
        with pytest.raises(LogUnavailable):
            await request.find(log)
        await late.ended()
        assert late.lost == ["unavailable"]
        unlogged = Request().write(log)
        released_at_once: list[int] = []
        unlogged.append(token(0), partial(released_at_once.append, 0))
        assert released_at_once == [0]
        assert not await unlogged.close()
        assert log.unconfirmed_bytes == 0

        if fault is signal.SIGKILL:
            mortal.kill()
            mortal.start()
        else:
            mortal.signal(signal.SIGCONT)
        await until(lambda: log.is_ready)
        assert await request.find(log) is None
        assert await known.find(log) is not None
        buried = request.follow(other)
        await buried.ended()
        assert (buried.entries, buried.lost) == ([], ["gone"])
        after = Request()
        writer = after.write(log)
        writer.append(end(0), nothing)
        assert await writer.close()
        assert await after.follow(other).ended() == [end(0)]


async def test_what_arrives_without_an_answer_is_written_once(mortal: MortalValkey) -> None:
    """Valkey reads it from a connection that we have given up meanwhile."""
    limits = replace(QUICK, answer_timeout_s=0.2, give_up_s=10.0, patience_s=10.0, owner_ttl_s=10.0)
    async with running(mortal.url, limits=limits) as log:
        request = Request()
        writer, reading = request.write(log), request.follow(log)
        released: list[int] = []
        for number in range(5):
            await until(lambda: log.is_ready and len(released) == len(reading.parts))
            mortal.signal(signal.SIGSTOP)
            writer.append(token(number), partial(released.append, number))
            await asyncio.sleep(0)
            await until(lambda: not log.is_ready)
            mortal.signal(signal.SIGCONT)
            await until(lambda: log.is_ready and not log.unconfirmed_bytes)
            assert released == list(range(number + 1))
        writer.append(end(5), nothing)
        assert await writer.close()
        assert await reading.ended() == [*map(token, range(5)), end(5)]


async def test_a_valkey_that_forgot(log: TokenLog, valkey: ValkeyServer) -> None:
    request = Request()
    writer, reading = request.write(log), request.follow(log)
    await until(lambda: len(reading.entries) == 1)
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    released: list[int] = []
    writer.append(token(0), partial(released.append, 0))
    await reading.ended()
    assert (writer.lost, released, reading.lost) == ("gone", [0], ["gone"])
    assert await request.find(log) is None


async def test_an_old_copy_of_a_log_is_not_gone_on_with(mortal: MortalValkey) -> None:
    """A failover may lose the last entries that were confirmed."""
    async with running(mortal.url, limits=replace(QUICK, give_up_s=5.0)) as log:
        request = Request()
        writer = request.write(log)
        for number in range(3):
            writer.append(token(number), nothing)
            await until(lambda: not log.unconfirmed_bytes)
        with redis.Redis.from_url(mortal.url) as client:
            last = client.xrevrange(request.key, count=1)[0][0]
            assert client.xdel(request.key, last) == 1
        mortal.kill()
        mortal.start()
        await until(lambda: writer.lost == "gone")
        assert await request.find(log) is None


# -- owners -----------------------------------------------------------------------------------------------

_OWNER = """
import asyncio, sys
from tests.gateway.token_logs import *
async def main(url, *names):
    async with running(url, "doomed", LogLimits()) as log:
        request = Request(*map(UUID, names[:2]), bytes.fromhex(names[2]))
        writer = request.write(log)
        for number in range(1_000):
            writer.append(token(number), lambda number=number: print(number, flush=True))
            await asyncio.sleep(0.01)
asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_gateway_killed_in_mid_answer(valkey: ValkeyServer) -> None:
    """With the real times: whoever follows has all that was shown, and knows within four seconds."""
    request = Request()
    arguments = [valkey.url, str(request.tenant_id), str(request.request_id), request.data_key.hex()]
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _OWNER,
        *arguments,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with running(valkey.url, limits=LogLimits()) as log:
        reading = request.follow(log)
        await until(lambda: len(reading.parts) > 50, 15)
        owner.kill()
        killed_at = time.monotonic()
        assert owner.stdout is not None
        shown = len((await owner.stdout.read()).splitlines())
        await owner.wait()
        entries = await reading.ended(10)
        assert reading.lost == ["owner_lost"]
        assert 1.5 < time.monotonic() - killed_at < 4.3
        assert len(entries) >= shown
        assert entries == [*map(token, range(len(entries)))]


async def test_a_newer_attempt_replaces_the_log_and_fences_its_owner(
    log: TokenLog, valkey: ValkeyServer
) -> None:
    request = Request()
    old = request.write(log)
    old.append(token(0), nothing)
    follower = request.follow(log)
    await until(lambda: len(follower.parts) == 1)
    async with running(valkey.url, "gateway-b") as other:
        new = request.write(other, attempt=2)
        new.append(token(100), nothing)
        await follower.ended()
        assert follower.lost == ["overtaken"]
        released: list[int] = []
        old.append(token(1), partial(released.append, 1))
        await until(lambda: released == [1])
        assert old.lost == "overtaken"
        late = request.write(log)  # even one that opens only now
        late.append(end(0), nothing)
        assert not await late.close()
        await asyncio.sleep(2 * QUICK.heartbeat_s)  # the old ones were buried, if they ever are
        new.append(end(1), nothing)
        assert await new.close()
        opened = await request.find(log)
        assert opened is not None
        assert (opened.attempt, opened.owner) == (2, "gateway-b")
        assert await request.follow(log, attempt=2).ended() == [token(100), end(1)]


async def test_an_answer_that_never_ends_is_incomplete(valkey: ValkeyServer) -> None:
    async with running(valkey.url, limits=replace(QUICK, overtime_s=0.2)) as log:
        request = Request()
        request.write(log, deadline_s=0.5)
        reading = request.follow(log)
        await reading.ended()
        assert reading.lost == ["incomplete"]


async def test_a_log_that_is_closed_without_an_end_is_gone(log: TokenLog) -> None:
    request = Request()
    writer, reading = request.write(log), request.follow(log)
    writer.append(token(0), nothing)
    await until(lambda: len(reading.parts) == 1)
    assert not await writer.close()
    await reading.ended()
    assert (writer.lost, reading.lost) == ("abandoned", ["gone"])
