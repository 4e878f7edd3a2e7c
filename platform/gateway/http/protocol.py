"""uvicorn's HTTP protocol with the bounds it lacks: on headers, waiting requests, unsent bytes, closing.

Used as `uvicorn --http gateway.http.protocol:BoundedHttpProtocol`. It leans on names of the pinned release.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.errors import ApiError
from gateway.http.exchange import SERVER_EXTENSION
from gateway.http.head import head_judge, head_without_offer, is_handshake
from gateway.http.transport import ClosingTransport, event_replace, refusal_bytes, socket_tune
from gateway.limits import Limits

_SLICE_BYTES = 4096  # fed to the parser at once: how far a bound can be passed before it is noticed


class BoundedHttpProtocol(HttpToolsProtocol):
    """What cannot be served is answered in the OpenAI envelope, then nothing of that connection is parsed.

    Bytes count as headers until the parser reports body: so trailers and chunk extensions are bounded too.
    """

    limits = Limits()

    # Beyond thirty attributes an instance has a dictionary of its own, of more than a kilobyte.
    __slots__ = (
        "_header_bytes",
        "_header_count",
        "_header_timer",
        "_is_deaf",
        "_is_in_body",
        "_is_offer",
        "_linger_bytes",
        "_linger_timer",
        "_on_left",
        "_refusal",
        "_served",
        "_silent_bytes",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._linger_bytes = 0
        self._header_bytes = 0  # of this message, reported by the parser
        self._header_count = 0
        self._silent_bytes = 0  # fed since the parser last reported anything
        self._is_in_body = False  # also while trailers come
        self._is_deaf = False  # nothing more is parsed
        self._is_offer = False  # to speak a protocol that is not spoken here
        self._refusal: ApiError | None = None
        self._on_left: Callable[[], None] | None = None
        self._served: RequestResponseCycle | None = None  # `cycle`, the last to arrive, may wait behind it

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- the connection -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        event_replace(self.flow, "_is_writable_event")
        socket_tune(transport, self.limits.send_buffer_bytes)
        transport.set_write_buffer_limits(self.limits.write_buffer_bytes, self.limits.write_buffer_bytes // 2)
        self._header_timer_start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_deaf = True
        self._header_timer_stop()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
            if self._on_left is not None:
                self._on_left()
        super().connection_lost(exc)
        gone: Any = None  # each of them holds this object: it is freed now, not by the cycle collector
        self.cycle = self._served = self.scope = gone

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE_BYTES):
            if self._is_deaf or self.transport.is_closing():
                break
            piece = data[start : start + _SLICE_BYTES]
            self._silent_bytes += len(piece)
            self._feed(piece)
            unended_bytes = self._header_bytes + self._silent_bytes
            if unended_bytes > self.limits.max_header_bytes and not self._is_deaf:
                self._refuse(_headers_too_large(self.limits))
        if self._linger_timer is not None:
            self._linger_bytes += len(data)
            if self._linger_bytes > self.limits.linger_bytes:
                self.transport.abort()
        elif not self._is_deaf and not self._is_busy and self.timeout_keep_alive_task is None:
            self._header_timer_start()  # blank lines and the rest of an answered body are no request either

    def _feed(self, piece: bytes) -> None:
        """As uvicorn does, but an offer that is not taken leaves a request of HTTP/1.1 (RFC 9110 §7.8)."""
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(piece)
                return
            except httptools.HttpParserError:
                msg = "Invalid HTTP request received."
                self.logger.warning(msg)
                self.send_400_response(msg)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._is_offer:
                    self.handle_websocket_upgrade()
                    return
                piece = self._head_again() + piece[upgrade.args[0] :]

    def _head_again(self) -> bytes:
        """The parser cannot be told to go on with the body: another one starts over, with the same head."""
        parser, self.parser = self.parser, httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return head_without_offer(parser.get_method(), self.url, parser.get_http_version(), self.headers)

    def _should_upgrade(self) -> bool:
        """A request that still waits for its answer would lose its connection."""
        if self._is_busy or not super()._should_upgrade():
            return False
        return is_handshake(self.parser.get_method(), self.parser.get_http_version(), self.headers)

    def handle_websocket_upgrade(self) -> None:
        self._is_deaf = True  # another protocol has the connection from here on
        self._header_timer_stop()
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        if not getattr(protocol, "handshake_initiated", True):  # it has smaller bounds, and would say nothing
            error = ApiError("invalid_http", "this is not a valid WebSocket handshake")
            self.transport.write(refusal_bytes(error, self.server_state.default_headers))
            self.transport.close()

    # -- parser callbacks: raising in one ends the parsing ------------------------------------------------

    def on_message_begin(self) -> None:
        self._silent_bytes = self._header_bytes = self._header_count = 0
        self._is_offer = False
        if len(self.pipeline) >= self.limits.max_pipelined:
            self._parsing_end(ApiError("invalid_http", "too many requests wait on this connection"))
        super().on_message_begin()
        self.scope["extensions"] = {SERVER_EXTENSION: {"server": self}}
        self._header_timer_start()

    def on_url(self, url: bytes) -> None:
        self._header_add(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_add(len(name) + len(value) + len(": \r\n"))
        if not self._is_in_body:  # trailers are dropped: they came after whoever judged the headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._silent_bytes = 0
        try:
            head_judge(self.parser.get_method(), self.parser.get_http_version(), self.headers)
        except ApiError as refusal:
            self._parsing_end(refusal)
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._is_offer = True  # this parser ends here: see `_feed`
            return
        self._header_timer_stop()
        self._is_in_body = True
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not None and self.cycle is not before:
            # The three methods of a transport that a cycle uses.
            closing: Any = ClosingTransport(self.loop, self.transport, self.close_gently)
            self.cycle.transport = closing
            event_replace(self.cycle, "message_event")
        if self.pipeline:  # uvicorn stops reading here, and would not notice that the client leaves
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        super().on_body(body)
        if sum(len(cycle.body) for cycle, _ in self.pipeline) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_chunk_header(self) -> None:
        self._silent_bytes = 0

    def on_message_complete(self) -> None:
        self._silent_bytes = 0
        if self._is_offer:
            return
        self._is_in_body = False
        super().on_message_complete()

    def _header_add(self, size: int) -> None:
        self._silent_bytes = 0
        self._header_bytes += size
        limits = self.limits
        if self._header_bytes > limits.max_header_bytes or self._header_count > limits.max_header_count:
            self._parsing_end(_headers_too_large(limits))

    def _parsing_end(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise refusal

    # -- what the application asks: see `gateway.http.exchange.Server` ---------------------------------------

    def abort(self) -> None:
        self.transport.abort()

    def left_tell(self, callback: Callable[[], None] | None) -> None:
        self._on_left = callback
        if callback is not None:
            self.flow.resume_reading()  # paused by a long body it would notice nothing
            if self.transport.is_closing():
                callback()

    def write_now(self, data: bytes) -> bool:
        cycle = self._served
        if cycle is None or cycle.response_complete or not cycle.chunked_encoding:
            return False
        if cycle.flow.write_paused or cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    # -- refusing and closing -----------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for whatever the parser or a callback objects to."""
        self._refuse(self._refusal or ApiError("invalid_http", "this is not a valid HTTP/1.1 request"))

    def _refuse(self, error: ApiError) -> None:
        self._is_deaf = True
        self._header_timer_stop()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not self._is_in_body:  # it came behind requests that are still served: they end first
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
        elif self._is_in_body:  # of a request that was answered already
            self.transport.close()
            return
        self.transport.write(refusal_bytes(error, self.server_state.default_headers))
        self._linger()

    def close_gently(self) -> None:
        """A plain close while the client still sends is a reset, which can destroy the answer on its way."""
        if self._is_in_body or self._is_deaf:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Everything was written: end our side, drop what still comes for a while, then close."""
        if self._linger_timer is not None or self.transport.is_closing():
            return
        self._is_deaf = True
        self._header_timer_stop()
        self._unset_keepalive_if_required()
        self._linger_timer = self.loop.call_later(self.limits.linger_s, self.transport.abort)
        self.flow.resume_reading()
        self.loop.call_soon(self._eof_write)  # uvloop would end it before what was written in this iteration

    def _eof_write(self) -> None:
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def on_response_complete(self) -> None:
        if self._linger_timer is not None:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        if self._is_in_body and not self._is_busy:
            self._header_timer_start()  # the rest of the body, unread, must end in that time as well

    # -- the time limit for headers -----------------------------------------------------------------------

    def _header_timer_start(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.header_timeout_s, self._header_timeout)

    def _header_timer_stop(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_timeout(self) -> None:
        self._header_timer = None
        if self._is_busy:  # it began behind a request that is still served, while reading may be paused
            self._header_timer_start()
        elif not self.transport.is_closing():
            self.transport.close()


def _headers_too_large(limits: Limits) -> ApiError:
    return ApiError(
        "headers_too_large",
        f"request line and headers are larger than {limits.max_header_bytes} bytes, "
        f"or more than {limits.max_header_count} headers",
    )
