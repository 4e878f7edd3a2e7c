"""Mutual TLS on real sockets, on both event loops: who has no good certificate gets no connection."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from devservices.wire_certificates import CertificateError, certificates_make
from gpuworker.wire.connection import Connection, connect, listen
from gpuworker.wire.framing import encode
from gpuworker.wire.messages import AnyMessage, Cancel, Heartbeat, Welcome
from gpuworker.wire.tls import TLS_SETTINGS, TlsError, WireTls, may_be, tls_from, tls_load
from gpuworker.wire.tls_listener import TlsListener

Runner = Callable[[Coroutine[Any, Any, None]], None]
ROW = Cancel(sid=1)

pytestmark = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def tls_of(folder: Path, name: str, *, authority: Path | None = None, days: int = 1) -> WireTls:
    (path,) = certificates_make(folder, [name], valid=timedelta(days=days))
    loaded = tls_load(str(path), str(path.with_suffix(".key")), str((authority or folder) / "ca.pem"))
    assert loaded is not None
    return loaded


class Side:
    """What one end sees."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[AnyMessage] = asyncio.Queue()
        self.closed: asyncio.Queue[str] = asyncio.Queue()
        self.opened: asyncio.Queue[Connection] = asyncio.Queue()

    async def listen(self, address: str, tls: WireTls | None) -> asyncio.AbstractServer:
        return await listen(address, self.message, self.close, self.opened.put_nowait, tls=tls)

    async def dial(
        self, address: str, tls: WireTls | None, role: str = "worker", name: str = ""
    ) -> Connection:
        return await connect(address, self.message, self.close, tls=tls, role=role, name=name)

    def message(self, connection: Connection, message: AnyMessage) -> None:
        self.messages.put_nowait(message)

    def close(self, connection: Connection, cause: str) -> None:
        self.closed.put_nowait(cause)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def bounded(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Coroutine[Any, Any, None]:
    async def run() -> None:
        async with asyncio.timeout(20):
            await scenario()

    return run()


async def refused(tls: WireTls | None, address: str, server: Side) -> str:
    """Why nothing came of a connection; the listener never saw it."""
    client = Side()
    try:
        connection = await client.dial(address, tls)
    except OSError as error:
        cause = str(error)
    else:  # in TLS 1.3 a client is done before the server has judged it
        connection.send(ROW)
        cause = await client.closed.get()
    assert server.messages.empty()
    assert server.opened.empty()
    return cause


def test_both_ends_know_each_other_and_messages_pass(run: Runner, tmp_path: Path) -> None:
    worker, gateway = tls_of(tmp_path, "worker/w0"), tls_of(tmp_path, "gateway/*")

    async def scenario() -> None:
        server, client, address = Side(), Side(), free_address()
        listening = await server.listen(address, worker)
        connection = await client.dial(address, gateway, name="w0")
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
            await client.dial(address, gateway)

    run(bounded(scenario))


def test_a_peer_that_does_not_read_is_cut_off(run: Runner, tmp_path: Path) -> None:
    worker, gateway = tls_of(tmp_path, "worker/w0"), tls_of(tmp_path, "gateway/*")

    async def scenario() -> None:
        server, client, address = Side(), Side(), free_address()
        listening = await server.listen(address, worker)
        connection = await client.dial(address, gateway)
        transport: Any = connection._transport
        transport.pause_reading()
        peer = await server.opened.get()
        chunk, sent = Cancel(sid=1, reason="x" * (1 << 20)), 0
        while peer.send(chunk):
            sent += 1
            assert sent < 96
        assert await server.closed.get() == "peer does not read"
        connection.abort("over")
        listening.close()

    run(bounded(scenario))


@pytest.mark.parametrize("how", ["other authority", "expired", "none", "plain"])
def test_who_has_no_good_certificate_gets_nothing(run: Runner, tmp_path: Path, how: str) -> None:
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

    async def scenario() -> None:
        server, address = Side(), free_address()
        listening = await server.listen(address, worker)
        assert await refused(bad, address, server)
        good = await Side().dial(address, tls_of(tmp_path / "own", "gateway/g"))
        good.send(ROW)
        assert await server.messages.get() == ROW
        good.abort("over")
        listening.close()

    run(bounded(scenario))


@pytest.mark.parametrize(
    ("held", "authority", "cause"),
    [
        ("gateway/w0", "own", "names"),
        ("worker/w1", "own", "names"),
        ("worker/w0", "other", "self-signed|unable to get|signature failure|verify failed"),
    ],
)
def test_a_client_does_not_speak_to_somebody_else(
    run: Runner, tmp_path: Path, held: str, authority: str, cause: str
) -> None:
    gateway = tls_of(tmp_path / "own", "gateway/g")
    impostor = tls_of(tmp_path / authority, held)

    async def scenario() -> None:
        server, address = Side(), free_address()
        listening = await server.listen(address, impostor)
        with pytest.raises(OSError, match=cause):
            await Side().dial(address, gateway, name="w0")
        assert server.messages.empty()
        listening.close()

    run(bounded(scenario))


def test_a_tls_client_is_not_understood_by_a_plain_listener(run: Runner, tmp_path: Path) -> None:
    gateway = tls_of(tmp_path, "gateway/g")

    async def scenario() -> None:
        server, address = Side(), free_address()
        listening = await server.listen(address, None)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await Side().dial(address, gateway)
        assert "exceeds" in await server.closed.get()
        listening.close()

    run(bounded(scenario))


def test_half_open_handshakes_are_bounded_in_number_and_time(run: Runner, tmp_path: Path) -> None:
    worker, gateway = tls_of(tmp_path, "worker/w0"), tls_of(tmp_path, "gateway/g")

    async def scenario() -> None:
        made: list[Connection] = []
        side = Side()

        def factory() -> Connection:
            made.append(Connection(side.message, side.close))
            return made[-1]

        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        bounds = {"max_handshakes": 4, "handshake_s": 1.0}
        server = TlsListener([listener], factory, worker.listening, **bounds)
        # Given six that say nothing, the two oldest are cut for the others
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for reader, _ in silent[:2]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert len(server._handshakes) == 4
        # Then one that can is served at once
        connection = await side.dial(f"tcp://127.0.0.1:{port}", gateway)
        connection.send(Heartbeat())
        assert await side.messages.get() == Heartbeat()
        # And the others end in time
        for reader, writer in silent[2:]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert not server._handshakes
        assert connection.is_open
        connection.abort("over")
        server.close()
        await server.wait_closed()

    run(bounded(scenario))


def test_unix_sockets_stay_plain(run: Runner, tmp_path: Path) -> None:
    worker = tls_of(tmp_path, "worker/w0")

    async def scenario() -> None:
        server, address = Side(), f"unix:{tmp_path}/w.sock"
        listening = await server.listen(address, worker)
        _, writer = await asyncio.open_unix_connection(f"{tmp_path}/w.sock")
        writer.write(encode(ROW))
        assert await server.messages.get() == ROW
        assert (await server.opened.get()).names is None
        writer.close()
        listening.close()

    run(bounded(scenario))


def test_settings_are_all_or_none_and_say_what_is_wrong(run: Runner, tmp_path: Path) -> None:
    del run
    (path,) = certificates_make(tmp_path, ["worker/w0"])
    (other,) = certificates_make(tmp_path, ["worker/w1"])
    good = dict(
        zip(TLS_SETTINGS, map(str, (path, path.with_suffix(".key"), tmp_path / "ca.pem")), strict=True)
    )
    assert tls_from({}) is None
    assert tls_from(good) is not None
    for name in TLS_SETTINGS:
        with pytest.raises(TlsError, match=f"{name} not set"):
            tls_from({**good, name: ""})
        with pytest.raises(TlsError, match="SLUICE_WIRE_TLS_"):
            tls_from({**good, name: str(tmp_path / "missing")})
    with pytest.raises(TlsError, match="unencrypted key"):
        tls_from({**good, "SLUICE_WIRE_TLS_KEY": str(other.with_suffix(".key"))})
    with pytest.raises(CertificateError, match="ROLE/ID"):
        certificates_make(tmp_path, ["queen/w0"])
    assert (
        path.with_suffix(".key").stat().st_mode & 0o077,
        (tmp_path / "ca.key").stat().st_mode & 0o077,
    ) == (0, 0)


def test_names_say_what_a_peer_may_be(run: Runner) -> None:
    del run
    assert may_be(None, "worker", "w0")
    assert may_be(("worker/w0",), "worker", "w0")
    assert may_be(("worker/*",), "worker", "w0")
    assert may_be(("gateway/g", "worker/w0"), "worker")
    assert not may_be((), "worker")
    assert not may_be(("worker/w0",), "worker", "w1")
    assert not may_be(("worker/w0",), "gateway", "w0")
    assert not may_be(("workers/w0",), "worker")
