"""Sends the frames of all requests of one socket, in turn. A client that does not read them loses it."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from gateway.http.exchange import Send

SERVER_EXTENSION = "sluice.websocket"  # ASGI scope extension of our own server protocol: {"server": Server}


class Server(Protocol):
    """What `gateway.websocket.server_protocol` offers beyond ASGI."""

    on_shutdown: Callable[[], None] | None  # called instead of closing the socket when the server stops

    def write_now(self, frame: bytes) -> bool:
        """A text frame written at once; False when it must wait for its reader."""

    def abort(self) -> None:
        """Drops the connection with all that was not read."""


class SocketLost(ConnectionError):
    """Nothing can be sent any more."""


class SocketWriter:
    """`on_lost` is called once when the client has not read for `slow_reader_s`, or is gone."""

    def __init__(
        self, send: Send, server: Server | None, slow_reader_s: float, on_lost: Callable[[], None]
    ) -> None:
        self._send = send
        self._server = server
        self._slow_reader_s = slow_reader_s
        self._on_lost = on_lost
        self._turn = asyncio.Lock()  # first come, first served: no request starves another one
        self._is_closed = False
        self.last_sent_at = time.monotonic()

    async def send(self, frame: bytes) -> None:
        """Waits while the client does not read. Raises SocketLost."""
        if self.write_now(frame):
            return
        async with self._turn:
            if self._is_closed:
                raise SocketLost
            try:
                async with asyncio.timeout(self._slow_reader_s):
                    await self._send({"type": "websocket.send", "text": frame.decode()})
            except (
                OSError,
                RuntimeError,
            ) as error:  # servers say in either way that the connection is closed
                self.abort()
                raise SocketLost from error
            self.last_sent_at = time.monotonic()

    def write_now(self, frame: bytes) -> bool:
        """False when it must wait for others, or for the client."""
        if self._server is None or self._is_closed or self._turn.locked():
            return False
        if self._server.write_now(frame):
            self.last_sent_at = time.monotonic()
            return True
        return False

    def close(self) -> None:
        """Whatever still waits is not sent."""
        self._is_closed = True

    def abort(self) -> None:
        """What the client did not read is dropped, where the server can do that."""
        self._is_closed = True
        if self._server is not None:
            self._server.abort()
        self._on_lost()
