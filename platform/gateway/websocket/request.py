"""One request on a socket: served like one over HTTP, its events sent as frames within a client's credit."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from gateway.admission import slot
from gateway.answer import Framing
from gateway.dialects.registry import ENDPOINTS
from gateway.errors import ApiError
from gateway.http import request_id_new
from gateway.runtime import Gateway
from gateway.served import Served
from gateway.serving import RESUME_HEADER, serve
from gateway.submission import Call
from gateway.websocket import frames
from gateway.websocket.frames import ChunkFraming, RequestCreate
from tenants.contracts import KeyGrant

MAX_WINDOW = 4096
_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

logger = logging.getLogger(__name__)

SendFrame = Callable[[bytes], Awaitable[None]]


class SocketRequest:
    """`send` waits while the socket's client does not read."""

    def __init__(self, gateway: Gateway, grant: KeyGrant, frame: RequestCreate, send: SendFrame) -> None:
        self._gateway = gateway
        self._grant = grant
        self._frame = frame
        self._send = send
        self._served: Served | None = None
        self._sent = 0
        self._acked = 0

    async def run(self) -> None:
        """Until its answer, or an error, was sent."""
        try:
            await self._run()
        except ApiError as failure:
            await self._send(frames.error(failure, self._frame.id))

    def ack(self, seq: int) -> None:
        self._acked = max(self._acked, min(seq, self._sent))
        if self._served is not None:
            self._served.answer.wake.set()

    async def _run(self) -> None:
        gateway = self._gateway
        call = self._call()
        with slot(gateway, self._grant):
            served = await serve(gateway, call, self._framing_for)
            del call
            gateway.deliver_begin(served)
            self._served = served
            try:
                is_replayed = not served.is_computed_here
                await self._send(
                    frames.accepted(self._frame.id, str(served.request_id), replayed=is_replayed)
                )
                await self._deliver(served)
            finally:
                gateway.deliver_end(served)

    def _call(self) -> Call:
        """Raises ApiError."""
        frame = self._frame
        if frame.endpoint not in _ENDPOINTS:
            raise ApiError(
                "invalid_value", f"endpoint must be one of {', '.join(_ENDPOINTS)}", param="endpoint"
            )
        if frame.window is not None and not 1 <= frame.window <= MAX_WINDOW:
            raise ApiError("invalid_value", f"window must be between 1 and {MAX_WINDOW}", param="window")
        headers: dict[bytes, bytes] = {}
        if frame.idempotency_key is not None:
            headers[b"idempotency-key"] = frame.idempotency_key.encode("utf-8", "replace")
        if frame.resumable:
            headers[RESUME_HEADER] = b"1"
        if frame.deadline_ms is not None:
            headers[b"x-request-deadline-ms"] = str(frame.deadline_ms).encode()
        dialect, body = ENDPOINTS[frame.endpoint], bytes(frame.body)
        return Call(dialect, self._grant, headers, body, frame.endpoint, request_id_new(), time.monotonic())

    def _framing_for(self, _: str, __: bool) -> Framing:
        return ChunkFraming(self._frame.id)

    async def _deliver(self, served: Served) -> None:
        answer = served.answer
        try:
            async with asyncio.timeout(None) as guard:
                answer.guard = guard
                await self._events_send(served)
        except TimeoutError:
            logger.info("request %s: gave up writing", served.request_id)  # the watchdog cut it
        finally:
            answer.guard = None
        if answer.failure is not None:
            raise answer.failure
        if answer.whole is not None:
            await self._send(frames.response(self._frame.id, answer.renderer.whole(answer.whole)))

    async def _events_send(self, served: Served) -> None:
        answer, window = served.answer, self._frame.window
        while not answer.left:
            has_credit = window is None or self._sent - self._acked < window
            if answer.pending and has_credit:
                answer.writing_since = time.monotonic()
                await self._send(answer.take_one())
                self._sent += 1
                answer.writing_since = 0.0
                answer.last_written_at = time.monotonic()
                continue
            if answer.is_ended and not answer.pending:
                return
            if answer.pending and not answer.writing_since:
                answer.writing_since = time.monotonic()  # without credit for too long it is cut
            answer.ping_due = False
            answer.wake.clear()
            await answer.wake.wait()
