"""Leaving a stream, in whatever way, closes its connection at once and stops the generation at the server."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from sluice_client import AsyncSluice, ResumePolicy, Sluice
from tests.client.answers import REQUEST_ID, STREAM_ID, Resumable, chat_events, numbered
from tests.client.conftest import QUICK, client_of
from tests.client.server import Exchange, ScriptedServer, serving

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def endless(exchange: Exchange) -> None:
    """Three events, then silence until the client leaves."""
    if exchange.method == "DELETE":
        exchange.head(204)
        return
    exchange.stream_head(REQUEST_ID)
    exchange.chunk(b"".join(numbered(chat_events())[:3]))
    exchange.wait_left()


def stopped(server: ScriptedServer, *, since: float) -> None:
    """Closed and cancelled within a second."""
    cancel = server.wait_for("DELETE")
    # Before the first event only the request has a name.
    assert cancel.path in (f"/v1/streams/{STREAM_ID}", f"/v1/streams/{REQUEST_ID}")
    assert cancel.headers["authorization"].startswith("Bearer ")
    (generation,) = server.of("POST")
    assert generation.left.wait(1)
    assert generation.left_at - since < 1
    assert len(server.exchanges) == 2


def by_with(client: Sluice) -> None:
    with client.chat.stream(**ASK) as stream:
        next(iter(stream))


def by_with_unread(client: Sluice) -> None:
    with client.chat.stream(**ASK):
        pass


def by_break(client: Sluice) -> None:
    for _ in client.chat.stream(**ASK):
        break


def by_break_of_a_kept_stream(client: Sluice) -> None:
    stream = client.chat.stream(**ASK)
    for _ in stream:
        break
    assert list(stream) == []


def by_close(client: Sluice) -> None:
    stream = client.chat.stream(**ASK)
    chunks = iter(stream)
    next(chunks)
    stream.close()
    stream.close()
    assert list(chunks) == []


def by_exception(client: Sluice) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        for _ in client.chat.stream(**ASK):
            raise KeyboardInterrupt


def by_abandoned_generator(client: Sluice) -> None:
    def words() -> Iterator[Any]:
        yield from client.chat.stream(**ASK)

    next(words())


@pytest.mark.parametrize(
    "leave",
    [
        by_with,
        by_with_unread,
        by_break,
        by_break_of_a_kept_stream,
        by_close,
        by_exception,
        by_abandoned_generator,
    ],
)
def test_leaving_stops_the_generation(leave: Callable[[Sluice], None]) -> None:
    with client_of(endless) as (client, server):
        since = time.monotonic()
        leave(client)
        stopped(server, since=since)


async def async_by_with(client: AsyncSluice) -> None:
    async with client.chat.stream(**ASK) as stream:
        async for _ in stream:
            break


async def async_by_break(client: AsyncSluice) -> None:
    async for _ in client.chat.stream(**ASK):
        break
    await asyncio.sleep(0.2)  # the event loop closes what the loop has left


async def async_by_cancel(client: AsyncSluice) -> None:
    task = asyncio.create_task(client.chat.stream(**ASK).read())
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def async_by_timeout(client: AsyncSluice) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.chat.stream(**ASK).read()


async def async_by_scope(client: AsyncSluice) -> None:
    """Every await in a cancelled scope is cancelled again, but for what is shielded."""
    with anyio.move_on_after(0.2):
        await client.chat.stream(**ASK).read()


async def async_by_another_task(client: AsyncSluice) -> None:
    stream = client.completions.stream(model="tiny", prompt="hello")
    task = asyncio.create_task(stream.read())
    await asyncio.sleep(0.2)
    await stream.close()
    await task


@pytest.mark.parametrize(
    "leave",
    [async_by_with, async_by_break, async_by_cancel, async_by_timeout, async_by_scope, async_by_another_task],
)
async def test_leaving_stops_the_generation_of_code_that_awaits(leave: Callable[[AsyncSluice], Any]) -> None:
    with serving(endless) as server:
        async with AsyncSluice(server.base_url, "k", resume=QUICK) as client:
            since = time.monotonic()
            await leave(client)
            await asyncio.to_thread(stopped, server, since=since)


def test_a_stream_is_iterated_once() -> None:
    with client_of(endless) as (client, _), client.chat.stream(**ASK) as stream:
        for _ in stream:
            break
        with pytest.raises(RuntimeError, match="once"):
            list(stream)


def test_what_has_ended_is_not_cancelled() -> None:
    with client_of(Resumable()) as (client, server), client.chat.stream(**ASK) as stream:
        stream.read()
    assert [exchange.method for exchange in server.exchanges] == ["POST"]


def test_without_resume_closing_is_enough() -> None:
    with client_of(endless, ResumePolicy(attempts=0)) as (client, server):
        by_with(client)
        (generation,) = server.exchanges
        assert generation.left.wait(1)
        assert "x-stream-resume" not in generation.headers
    assert server.of("DELETE") == []


@contextmanager
def cancelling(answer: Callable[[Exchange], None]) -> Iterator[tuple[Sluice, ScriptedServer]]:
    def script(exchange: Exchange) -> None:
        (answer if exchange.method == "DELETE" else endless)(exchange)

    with client_of(script) as found:
        yield found


def test_a_server_that_does_not_answer_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    with cancelling(Exchange.wait_left) as (client, server):
        since = time.monotonic()
        by_with(client)
        assert time.monotonic() - since < 1.5
    assert len(server.of("DELETE")) == 1
    (record,) = [record for record in caplog.records if record.name.startswith("sluice_client")]
    assert record.levelno == logging.WARNING
    assert REQUEST_ID in record.getMessage()


async def test_a_server_that_does_not_answer_holds_no_task_up() -> None:
    def script(exchange: Exchange) -> None:
        exchange.wait_left() if exchange.method == "DELETE" else endless(exchange)

    with serving(script) as server:
        async with AsyncSluice(server.base_url, "k", resume=QUICK) as client:
            since = time.monotonic()
            await async_by_with(client)
            assert time.monotonic() - since < 1.5


@pytest.mark.parametrize(("status", "logged"), [(404, 0), (500, 1)])
def test_a_refused_cancel_is_no_exception(status: int, logged: int, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.refuse(status, "no")

    with cancelling(refuse) as (client, server):
        by_with(client)
    assert len(server.of("DELETE")) == 1
    assert sum(record.name.startswith("sluice_client") for record in caplog.records) == logged
