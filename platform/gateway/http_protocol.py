"""uvicorn's HTTP protocol with two bounds it lacks: a time limit for headers, and a way to drop a connection.

Used as `uvicorn --http gateway.http_protocol:BoundedHttpProtocol`. It leans on names of the pinned release.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http import ABORT_EXTENSION
from gateway.limits import Limits


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that has sent no complete header block within `header_timeout_s` is closed."""

    header_timeout_s = Limits().header_timeout_s
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
