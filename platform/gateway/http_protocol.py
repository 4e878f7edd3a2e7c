"""uvicorn's HTTP protocol with what it lacks: a time limit for headers, a way to drop a connection, no delay.

Used as `uvicorn --http gateway.http_protocol:BoundedHttpProtocol`. It leans on names of the pinned release.
"""

import asyncio
import os
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http import ABORT_EXTENSION
from gateway.limits import Limits


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that has sent no complete header block within `header_timeout_s` is closed."""

    header_timeout_s = Limits().header_timeout_s
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _delay_off(transport)
        self._header_timer_start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_timer_stop()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT_EXTENSION: {"abort": self.transport.abort}}
        self._header_timer_start()

    def on_headers_complete(self) -> None:
        self._header_timer_stop()
        super().on_headers_complete()

    def _header_timer_start(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self._header_timeout)

    def _header_timer_stop(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_timeout(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def _delay_off(transport: asyncio.Transport) -> None:
    """For inherited listeners (`uvicorn --fd`) neither loop does this: they pass for Unix sockets.

    Without it an answer's body waits up to 40 ms for the acknowledgement of its head.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:  # asks the kernel what it really is
        if duplicate.family in (socket.AF_INET, socket.AF_INET6):
            duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
