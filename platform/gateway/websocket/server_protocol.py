"""uvicorn's WebSocket protocol with the bounds it lacks, and writes without a task switch.

Used as `uvicorn --ws gateway.websocket.server_protocol:BoundedWebSocketProtocol`, for all sockets here.
It leans on names of the pinned release.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from gateway.limits import Limits
from gateway.websocket.writer import SERVER_EXTENSION

_MAX_FRAGMENTS = 4096  # of one message: empty ones cost memory, and no limit on bytes sees them
_TEXT = 0x81  # a final text frame (RFC 6455 §5.2)

# uvicorn would log each upgrade with its address, which may hold a key that somebody put there.
_logger = logging.getLogger("uvicorn.error.websocket")
_logger.setLevel(logging.WARNING)


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Frames are not compressed: they are small, and their length would tell what is in them (RFC 7692 §11).

    `on_shutdown` is set by an application that closes its socket itself when the server stops.
    """

    limits = Limits()
    close_timeout_s = 5.0  # for the client's part of the closing handshake
    on_shutdown: Callable[[], None] | None = None
    _abort_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _logger
        self.close_timeout = self.close_timeout_s
        self.conn = ServerProtocol(max_size=self.limits.max_socket_message_bytes, logger=_logger)

    def write_now(self, frame: bytes) -> bool:
        """A text frame written at once; False when it must wait for its reader."""
        if not self.writable.is_set() or self.close_sent or self.conn.state is not State.OPEN:
            return False
        size = len(frame)
        if size < 126:
            head = bytes((_TEXT, size))
        elif size < 1 << 16:
            head = b"%c\x7e%b" % (_TEXT, size.to_bytes(2))
        else:
            head = b"%c\x7f%b" % (_TEXT, size.to_bytes(8))
        self.transport.write(head + frame)
        return True

    def abort(self) -> None:
        """Drops the connection with all that was not read."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        limit = self.limits.write_buffer_bytes
        self.transport.set_write_buffer_limits(limit, limit // 2)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._abort_timer is not None:
            self._abort_timer.cancel()

    def shutdown(self) -> None:
        if self.on_shutdown is None or self.close_sent or not self.handshake_complete:
            super().shutdown()
        else:
            self.on_shutdown()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.disconnected:  # a close waits for ever for bytes that nobody reads
            self._abort_timer = self.loop.call_later(self.close_timeout_s, self.transport.abort)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:  # refused, which uvicorn takes for a defect
            self.handshake_complete = True

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][SERVER_EXTENSION] = {"server": self}

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        if len(self.frames) < _MAX_FRAGMENTS:
            super().handle_cont(event)
        else:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message may have {_MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        super().handle_ping()
        if self.transport.get_write_buffer_size() > self.limits.max_pending_bytes:
            self.transport.abort()  # it sends pings and reads no pongs

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()
