"""One HTTP/1.1 connection and the exchange on it: an answer is parsed where it is read, without a task."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

import httptools

MAX_HEADER_BYTES = 64 << 10

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Who takes an answer. Nothing is called any more after `ended`, or after the exchange was cancelled."""

    def started(self, status: int) -> None: ...

    def data(self, received: bytes) -> None: ...

    def ended(self, failure: str) -> None:
        """`failure` is empty when the answer is whole."""


class Exchange:
    """A request and its answer."""

    def __init__(self, request: bytes, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.connection: HttpConnection | None = None
        self.task: asyncio.Task[None] | None = None  # that connects
        self.is_over = False
        self._is_paused = False

    def cancel(self) -> None:
        """Closes the connection at once: the server sees that nobody listens any more."""
        if self.is_over:
            return
        self.is_over = True
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None:
            self.connection.abort()

    def pause(self, is_paused: bool) -> None:
        """Stops reading, so that the server is held up in turn; more than is on its way may still come."""
        self._is_paused = is_paused
        if self.connection is not None and not self.is_over:
            self.connection.pause(is_paused)

    def assign(self, connection: "HttpConnection") -> None:
        self.connection, self.task = connection, None
        connection.begin(self)
        if self._is_paused:
            connection.pause(True)

    def end(self, failure: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.sink.ended(failure)


class HttpConnection(asyncio.Protocol):
    def __init__(
        self,
        on_finished: Callable[["HttpConnection"], None],
        on_unused: Callable[[Exchange], None],
        on_idle_closed: Callable[["HttpConnection"], None],
    ) -> None:
        self._on_finished, self._on_unused = on_finished, on_unused
        self._on_idle_closed = on_idle_closed
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._answered = 0  # exchanges, before this one
        self._is_paused = False
        self._may_be_kept = False  # the answer is whole, and the server would take another request
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, exchange: Exchange) -> None:
        if self._transport is None:
            exchange.end("the connection was closed")
            return
        self.pause(False)
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._has_started = self._is_framed = False
        self._transport.write(exchange.request)

    def pause(self, is_paused: bool) -> None:
        if is_paused != self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def abort(self) -> None:
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            self.abort()  # nobody asked
            return
        if not self._has_started:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            logger.exception("an answer could not be taken")
            self._fail(f"its answer could not be taken: {error.__cause__ or error}")
        except httptools.HttpParserError as error:
            self._fail(f"it does not speak HTTP: {error}")
        if self._may_be_kept:  # not sooner: what follows in these bytes must not reach another exchange
            self._may_be_kept = False
            self._on_finished(self)
        elif not self._has_started and self._head_bytes > MAX_HEADER_BYTES:
            self._fail("its headers are too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange, self._exchange = self._exchange, None
        if exchange is None or exchange.is_over:
            self._on_idle_closed(self)
            return
        if self._answered and not self._head_bytes:
            self._on_unused(exchange)
        elif self._has_started and not self._is_framed and exc is None:
            exchange.end("")
        else:
            exchange.end(f"the connection was closed{f': {exc}' if exc else ''}")

    def _fail(self, failure: str) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.end(failure)

    # -- httptools ----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._exchange is not None:
            self._has_started = True
            self._exchange.sink.started(status)

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.sink.data(body)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or not self._has_started:  # cancelled, or an interim answer
            return
        self._exchange = None
        self._answered += 1
        self._may_be_kept = self._parser.should_keep_alive() and self.is_open
        if not self._may_be_kept:
            self.abort()
        exchange.end("")
