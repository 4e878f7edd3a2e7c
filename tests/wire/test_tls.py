"""Mutual TLS on real sockets, on both event loops: who has no good certificate gets no connection."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gpuworker.wire.connection import Connection
from gpuworker.wire.framing import encode
from gpuworker.wire.messages import Cancel, Heartbeat, Welcome
from gpuworker.wire.tls import WireTls
from gpuworker.wire.tls_listener import TlsListener
from tests.wire.tls_ends import ROW, Ends, Side, free_address, tls_of

Runner = Callable[[Coroutine[Any, Any, None]], None]
Scenario = Callable[[Ends], Coroutine[Any, Any, None]]

pytestmark = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def bounded(scenario: Scenario) -> Coroutine[Any, Any, None]:
    async def run() -> None:
        async with asyncio.timeout(20), Ends() as ends:
            await scenario(ends)

    return run()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


def test_both_ends_know_each_other_and_messages_pass(run: Runner, tmp_path: Path) -> None:
    worker, gateway = tls_of(tmp_path, "worker/w0"), tls_of(tmp_path, "gateway/*")

    async def scenario(ends: Ends) -> None:
        server, client, address = Side(), Side(), free_address()
        listening = await ends.listen(server, address, worker)
        connection = await ends.dial(client, address, gateway, name="w0")
        peer = await server.opened.get()
        assert (connection.names, peer.names) == (("worker/w0",), ("gateway/*",))
        large = Welcome(version=1, id="x" * (2 << 20), incarnation="")
        connection.send(ROW)
        assert await server.messages.get() == ROW
        peer.send(Heartbeat())
        for _ in range(8):
            peer.send(large)
        peer.close("done")
        assert await client.messages.get() == Heartbeat()
        for _ in range(8):
            assert await client.messages.get() == large
        await client.closed.get()
        assert await server.closed.get() == "done"
        listening.close()
        await listening.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await ends.dial(client, address, gateway)

    run(bounded(scenario))


def test_a_peer_that_does_not_read_is_cut_off(run: Runner, tmp_path: Path) -> None:
    worker, gateway = tls_of(tmp_path, "worker/w0"), tls_of(tmp_path, "gateway/*")

    async def scenario(ends: Ends) -> None:
        server, client, address = Side(), Side(), free_address()
        await ends.listen(server, address, worker)
        connection = await ends.dial(client, address, gateway)
        transport: Any = connection._transport
        peer = await server.opened.get()
        transport.pause_reading()
        chunk, sent = Cancel(sid=1, reason="x" * (1 << 20)), 0
        while peer.send(chunk):
            sent += 1
            assert sent < 96
        assert await server.closed.get() == "peer does not read"

    run(bounded(scenario))


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("other authority", "not accepted: self-signed"),
        ("expired", "not accepted: certificate has expired"),
        ("none", "did not return a certificate"),
        ("plain", "does not speak TLS"),
    ],
)
def test_who_has_no_good_certificate_gets_nothing(
    run: Runner, tmp_path: Path, how: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = tls_of(tmp_path / "own", "worker/w0")
    bad: WireTls | None
    match how:
        case "other authority":
            bad = tls_of(tmp_path / "other", "gateway/g")
            bad.connecting.load_verify_locations(tmp_path / "own" / "ca.pem")  # it does trust the listener
        case "expired":
            bad = tls_of(tmp_path / "own", "gateway/g", days=-1)
        case "none":
            context = ssl.create_default_context(cafile=str(tmp_path / "own" / "ca.pem"))
            context.check_hostname = False
            bad = WireTls(worker.listening, context)
        case _:
            bad = None

    async def scenario(ends: Ends) -> None:
        server, client, address = Side(), Side(), free_address()
        await ends.listen(server, address, worker)
        for _ in range(3):  # in TLS 1.3 a client is done before the server has judged it
            with suppress(OSError):
                connection = await ends.dial(client, address, bad)
                connection.send(ROW)
                await client.closed.get()
        good = await ends.dial(Side(), address, tls_of(tmp_path / "own", "gateway/g"))
        good.send(ROW)
        assert await server.messages.get() == ROW
        assert (await server.opened.get()).names == ("gateway/g",)
        assert server.opened.empty()

    with caplog.at_level(logging.WARNING, "gpuworker.wire"):
        run(bounded(scenario))
    (said,) = caplog.messages  # once, however often it comes
    assert word in said


@pytest.mark.parametrize(
    ("held", "authority", "days", "cause"),
    [
        ("gateway/w0", "own", 1, "names"),
        ("worker/w1", "own", 1, "names"),
        ("worker/w0", "other", 1, "not accepted: self-signed"),
        ("worker/w0", "own", -1, "not accepted: certificate has expired"),
    ],
)
def test_a_client_does_not_speak_to_somebody_else(
    run: Runner, tmp_path: Path, held: str, authority: str, days: int, cause: str
) -> None:
    gateway = tls_of(tmp_path / "own", "gateway/g")
    impostor = tls_of(tmp_path / authority, held, days=days)

    async def scenario(ends: Ends) -> None:
        server, address = Side(), free_address()
        await ends.listen(server, address, impostor)
        with pytest.raises(OSError, match=cause):
            await ends.dial(Side(), address, gateway, name="w0")
        assert server.messages.empty()

    run(bounded(scenario))


def test_a_tls_client_is_not_understood_by_a_plain_listener(run: Runner, tmp_path: Path) -> None:
    gateway = tls_of(tmp_path, "gateway/g")

    async def scenario(ends: Ends) -> None:
        server, address = Side(), free_address()
        await ends.listen(server, address, None)
        with pytest.raises(ConnectionAbortedError, match="no TLS with tcp://"):
            await ends.dial(Side(), address, gateway)
        assert "speaks TLS" in await server.closed.get()

    run(bounded(scenario))


def test_a_client_of_a_mute_listener_gives_up_when_it_is_told_to(run: Runner, tmp_path: Path) -> None:
    gateway = tls_of(tmp_path, "gateway/g")

    async def scenario(ends: Ends) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ends.dial(Side(), f"tcp://127.0.0.1:{mute.getsockname()[1]}", gateway)

    run(bounded(scenario))


def test_half_open_handshakes_are_bounded_in_number_and_time(run: Runner, tmp_path: Path) -> None:
    worker, gateway = tls_of(tmp_path, "worker/w0"), tls_of(tmp_path, "gateway/g")

    async def scenario(ends: Ends) -> None:
        side = Side()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        server = TlsListener(
            [listener],
            lambda: Connection(side.message, side.close),
            worker.listening,
            max_handshakes=4,
            handshake_s=1.0,
        )
        ends.callback(server.close)
        # Given six that say nothing, the two oldest are cut for the others
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for _, writer in silent:
            ends.callback(writer.close)
        for reader, _ in silent[:2]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert len(server._handshakes) == 4
        # Then one that can is served at once
        connection = await ends.dial(side, f"tcp://127.0.0.1:{port}", gateway)
        connection.send(Heartbeat())
        assert await side.messages.get() == Heartbeat()
        # And the others end in time
        for reader, _ in silent[2:]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        await until(lambda: not server._handshakes)
        assert connection.is_open
        server.close()
        await server.wait_closed()

    run(bounded(scenario))


def test_unix_sockets_stay_plain(run: Runner, tmp_path: Path) -> None:
    worker = tls_of(tmp_path, "worker/w0")

    async def scenario(ends: Ends) -> None:
        server = Side()
        await ends.listen(server, f"unix:{tmp_path}/w.sock", worker)
        _, writer = await asyncio.open_unix_connection(f"{tmp_path}/w.sock")
        ends.callback(writer.close)
        writer.write(encode(ROW))
        assert await server.messages.get() == ROW
        assert (await server.opened.get()).names is None

    run(bounded(scenario))
