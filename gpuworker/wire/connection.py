"""One asyncio connection carrying wire messages, over a Unix socket or TCP: connect, listen, send, close.

TCP is inside mutual TLS where the caller has certificates; Unix sockets never are: their folder is private.
The message callback runs inside the read callback, without a task or a queue. Sending never blocks:
past `MAX_OUTBOX_BYTES` unsent the peer counts as stuck and the connection is aborted, as its owner sees.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from gpuworker.wire.framing import FrameDecoder, WireError, encode
from gpuworker.wire.messages import AnyMessage
from gpuworker.wire.tls import WireTls, may_be, names_of, tls_reason
from gpuworker.wire.tls_listener import HANDSHAKE_S, SHUTDOWN_S, TlsListener

MAX_OUTBOX_BYTES = 32 * 1024 * 1024
_BACKLOG = 4096

logger = logging.getLogger(__name__)

OnMessage = Callable[["Connection", AnyMessage], None]
OnClose = Callable[["Connection", str], None]
OnOpen = Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """`on_close(connection, cause)` is called exactly once, however the connection ends.

    `last_received` is the event loop's time of the last bytes, for liveness checks. `names` is what the
    peer's certificate says it may be (`gpuworker.wire.tls`), None without TLS.
    An exception raised by `on_message` closes this connection only, and is logged.
    """

    def __init__(self, on_message: OnMessage, on_close: OnClose, on_open: OnOpen | None = None) -> None:
        self._on_message = on_message
        self._on_close = on_close
        self._on_open = on_open
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._cause = "closed by peer"
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self.last_received = self._loop.time()
        self.names: tuple[str, ...] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def outbox_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport else 0

    def send(self, message: AnyMessage) -> bool:
        """False when the connection is closed or was just aborted because the peer does not read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > MAX_OUTBOX_BYTES:
            self._cause = "peer does not read"
            transport.abort()
            return False
        transport.write(encode(message))
        return True

    async def drained(self) -> None:
        """Until little of what was sent is still here, or the connection has ended: for long transfers."""
        await self._writable.wait()

    def close(self, cause: str = "closed here") -> None:
        """Flush what was sent, then close."""
        if self.is_open and self._transport is not None:
            self._cause = cause
            self._transport.close()

    def abort(self, cause: str) -> None:
        """Close now; unsent bytes are lost."""
        if self._transport is not None:
            self._cause = cause
            self._transport.abort()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in shape, not by class
        self.names = names_of(transport.get_extra_info("peercert"))
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        try:
            for message in self._decoder.feed(data):
                if not self.is_open:
                    return
                self._on_message(self, message)
        except WireError as error:
            logger.warning("wire: closing a connection: %s", error)
            self.abort(str(error))
        except Exception:
            logger.exception("wire: message handler failed, closing the connection")
            self.abort("message handler failed")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._on_close(self, str(exc) if exc else self._cause)


def _parse(address: str) -> tuple[str, int] | Path:
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest:
        return Path(rest)
    if scheme == "tcp" and rest.startswith("//"):
        host, _, port = rest[2:].rpartition(":")
        if host and port.isdecimal() and int(port) < 1 << 16:
            return host.strip("[]"), int(port)
    raise ValueError(f"address must be unix:/path or tcp://host:port, not {address!r}")


def _stale_remove(path: Path) -> None:
    """Event loops would replace the socket of a living process too, which then hears nobody any more."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:  # alive, with a full backlog
            pass
    raise OSError(errno.EADDRINUSE, "another process listens there", str(path))


def _nobody(connection: Connection, cause: str) -> None:
    """Wants to know."""


async def connect(
    address: str,
    on_message: OnMessage,
    on_close: OnClose,
    *,
    tls: WireTls | None = None,
    role: str = "",
    name: str = "",
) -> Connection:
    """`role` and `name`: what a certificate must say of the listener; without a name, any of the role.

    Raises OSError when nobody listens there, or somebody else.
    """
    loop = asyncio.get_running_loop()
    target = _parse(address)
    if isinstance(target, Path):
        _, connection = await loop.create_unix_connection(
            lambda: Connection(on_message, on_close), str(target)
        )
        return connection
    if tls is None:
        _, connection = await loop.create_connection(lambda: Connection(on_message, on_close), *target)
        return connection
    try:
        _, connection = await loop.create_connection(
            lambda: Connection(on_message, on_close),
            *target,
            ssl=tls.connecting,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
    except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
        raise ConnectionAbortedError(f"no TLS with {address}: {tls_reason(error)}") from error
    if not may_be(connection.names, role, name):
        connection._on_close = _nobody  # the caller never had it
        connection.abort("its certificate is another's")
        wanted = f"{role}/{name or '*'}"
        raise ConnectionAbortedError(f"the certificate of {address} names {connection.names}, not {wanted}")
    return connection


async def listen(
    address: str,
    on_message: OnMessage,
    on_close: OnClose,
    on_open: OnOpen | None = None,
    *,
    tls: WireTls | None = None,
) -> asyncio.AbstractServer:
    """A stale socket file is replaced. Raises OSError when the address is taken."""
    loop = asyncio.get_running_loop()
    target = _parse(address)

    def factory() -> Connection:
        return Connection(on_message, on_close, on_open)

    if isinstance(target, Path):
        _stale_remove(target)
        return await loop.create_unix_server(factory, str(target), backlog=_BACKLOG)
    if tls is None:
        return await loop.create_server(factory, *target, backlog=_BACKLOG)
    return TlsListener(await _bind(*target), factory, tls.listening)


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of the host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            listener = socket.create_server(address, family=family, backlog=_BACKLOG)
            sockets.append(listener)
            listener.setblocking(False)
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets
