"""A log that is too long, or waits too long to be written, is given up; its stream goes on."""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import redis

from devservices.valkey import ValkeyServer
from gateway.token_log.limits import LogLimits
from tests.gateway.token_logs import QUICK, MortalValkey, Request, end, nothing, running, token, until


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalValkey]:
    server = MortalValkey(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.close()


async def test_a_log_that_grows_too_long_is_buried_and_its_stream_goes_on(valkey: ValkeyServer) -> None:
    async with running(valkey.url, limits=replace(QUICK, max_log_bytes=30_000)) as log:
        request, other = Request(), Request()
        writer, neighbour = request.write(log), other.write(log)
        reading = request.follow(log)
        released: list[int] = []
        for number in range(3_000):
            writer.append(token(number), partial(released.append, number))
            await asyncio.sleep(0)
        await until(lambda: len(released) == 3_000)
        assert released == list(range(3_000))
        assert writer.lost == "too_long"
        await reading.ended()
        assert reading.lost == ["gone"]
        assert await request.find(log) is None
        with redis.Redis.from_url(valkey.url) as client:
            assert int(client.memory_usage(request.key) or 0) < 6_000
        neighbour.append(end(0), nothing)
        assert await neighbour.close()


@pytest.mark.parametrize("bound", ["max_unconfirmed_log_bytes", "max_unconfirmed_bytes"])
async def test_what_waits_for_valkey_is_bounded(mortal: MortalValkey, bound: str) -> None:
    limits = replace(LogLimits(give_up_s=30.0, answer_timeout_s=30.0), **{bound: 10_000})
    async with running(mortal.url, limits=limits) as log:
        mortal.signal(signal.SIGSTOP)
        writer = Request().write(log)
        released: list[int] = []
        most_bytes = 0
        for number in range(2_000):
            writer.append(token(number), partial(released.append, number))
            most_bytes = max(most_bytes, log.unconfirmed_bytes)
        assert most_bytes <= 10_000
        assert writer.lost == "backlog"
        assert released == list(range(2_000))
        mortal.signal(signal.SIGCONT)
