"""Connections deliver in order over both kinds of socket, and end loudly: once, with a cause."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuworker.wire.connection import MAX_OUTBOX_BYTES, Connection, connect, listen
from gpuworker.wire.framing import MAX_FRAME_BYTES, encode
from gpuworker.wire.messages import AnyMessage, Cancel, Heartbeat, Welcome


@dataclass
class Side:
    """Records what one end sees."""

    messages: "asyncio.Queue[AnyMessage]" = field(default_factory=asyncio.Queue)
    closed: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    opened: "asyncio.Queue[Connection]" = field(default_factory=asyncio.Queue)
    on_message: Callable[[AnyMessage], None] = lambda message: None

    def message(self, connection: Connection, message: AnyMessage) -> None:
        self.on_message(message)
        self.messages.put_nowait(message)

    def close(self, connection: Connection, cause: str) -> None:
        self.closed.put_nowait(cause)


@dataclass
class Pair:
    address: str
    server: Side
    client: Side
    connection: Connection
    peer: Connection


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/w.sock" if request.param == "unix" else f"tcp://127.0.0.1:{_free_port()}"


@pytest.fixture
async def pair(address: str) -> AsyncIterator[Pair]:
    server_side, client_side = Side(), Side()
    server = await listen(address, server_side.message, server_side.close, server_side.opened.put_nowait)
    connection = await connect(address, client_side.message, client_side.close)
    yield Pair(address, server_side, client_side, connection, await server_side.opened.get())
    connection.abort("test over")
    server.close()
    await server.wait_closed()


async def test_messages_arrive_in_order_both_ways(pair: Pair) -> None:
    for sid in range(1000):
        assert pair.connection.send(Cancel(sid=sid))
        assert pair.peer.send(Cancel(sid=-sid))
    assert [await pair.server.messages.get() for _ in range(1000)] == [Cancel(sid=n) for n in range(1000)]
    assert [await pair.client.messages.get() for _ in range(1000)] == [Cancel(sid=-n) for n in range(1000)]


async def test_close_delivers_what_was_sent_and_both_sides_learn_once(pair: Pair) -> None:
    for sid in range(100):
        pair.connection.send(Cancel(sid=sid))
    pair.connection.close("done")
    assert not pair.connection.send(Heartbeat())
    assert await pair.client.closed.get() == "done"
    assert await pair.server.closed.get() == "closed by peer"
    assert pair.server.messages.qsize() == 100
    pair.connection.close()
    pair.connection.abort("again")
    await asyncio.sleep(0)
    assert pair.client.closed.empty()
    assert pair.server.closed.empty()


async def test_a_failing_handler_closes_only_its_own_connection(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: AnyMessage) -> None:
        if message == Cancel(sid=13):
            raise ZeroDivisionError

    pair.server.on_message = fail
    other = Side()
    neighbour = await connect(pair.address, other.message, other.close)
    pair.connection.send(Cancel(sid=13))
    assert await pair.server.closed.get() == "message handler failed"
    assert "ZeroDivisionError" in caplog.text
    neighbour.send(Cancel(sid=14))
    assert await pair.server.messages.get() == Cancel(sid=14)
    neighbour.close()
    await other.closed.get()


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "exceeds"),
        (b"\x00\x00\x00\x01\xc1", "undecodable"),
        (b"GET / HTTP/1.1\r\n\r\n", "exceeds"),
    ],
)
async def test_a_peer_that_does_not_speak_the_protocol_is_cut_off(pair: Pair, raw: bytes, cause: str) -> None:
    reader, writer = await _raw_open(pair.address)
    writer.write(encode(Heartbeat()))
    assert await pair.server.messages.get() == Heartbeat()
    writer.write(raw)
    assert cause in await pair.server.closed.get()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert pair.connection.send(Cancel(sid=1)), "other connections go on"
    assert await pair.server.messages.get() == Cancel(sid=1)


async def test_a_peer_that_does_not_read_is_aborted_and_costs_bounded_memory(pair: Pair) -> None:
    _reader, writer = await _raw_open(pair.address)
    stuck = await pair.server.opened.get()
    chunk = Cancel(sid=1, reason="x" * (1 << 20))
    sent = 0
    while stuck.send(chunk):
        sent += 1
        assert sent < 3 * (MAX_OUTBOX_BYTES >> 20)
    assert await pair.server.closed.get() == "peer does not read"
    assert stuck.outbox_bytes == 0
    writer.close()
    assert pair.peer.send(Heartbeat())
    assert await pair.client.messages.get() == Heartbeat()


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path))
    side = Side()
    server = await listen(f"unix:{path}", side.message, side.close)
    connection = await connect(f"unix:{path}", side.message, side.close)
    assert connection.is_open
    connection.close()
    await side.closed.get()
    server.close()
    await server.wait_closed()


async def test_an_address_that_is_taken_is_not_taken_over(address: str) -> None:
    first, second = Side(), Side()
    server = await listen(address, first.message, first.close)
    with pytest.raises(OSError, match=r"in use|another process"):
        await listen(address, second.message, second.close)
    await first.closed.get() if address.startswith("unix:") else None
    connection = await connect(address, first.message, first.close)
    connection.send(Heartbeat())
    assert await first.messages.get() == Heartbeat()
    connection.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("bad", ["", "unix:", "tcp://", "tcp://host", "tcp://:80", "http://host:80", "/path"])
async def test_a_bad_address_says_so(bad: str) -> None:
    side = Side()
    with pytest.raises(ValueError, match="address must be"):
        await connect(bad, side.message, side.close)


async def test_nobody_listening_raises_oserror(address: str) -> None:
    side = Side()
    with pytest.raises(OSError, match=r"."):
        await connect(address, side.message, side.close)


async def _raw_open(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_who_has_much_to_send_can_wait_until_it_is_read(pair: Pair) -> None:
    large = Welcome(version=1, id="x" * (512 << 10), incarnation="")
    transport: Any = pair.peer._transport
    transport.pause_reading()
    sent = 0

    async def send_all() -> None:
        nonlocal sent
        for _ in range(40):
            await pair.connection.drained()
            assert pair.connection.send(large)
            sent += 1

    sending = asyncio.create_task(send_all())
    await asyncio.sleep(0.2)
    assert sent < 20
    assert pair.connection.outbox_bytes < 2 * len(encode(large))
    transport.resume_reading()
    await sending
    for _ in range(40):
        assert await pair.server.messages.get() == large


async def test_waiting_for_a_reader_ends_with_the_connection(pair: Pair) -> None:
    transport: Any = pair.peer._transport
    transport.pause_reading()
    while pair.connection.outbox_bytes < 1 << 20:
        pair.connection.send(Welcome(version=1, id="x" * (512 << 10), incarnation=""))
    waiting = asyncio.create_task(pair.connection.drained())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    pair.connection.abort("enough")
    await waiting
    transport.resume_reading()
    assert await pair.server.closed.get()
