"""One request on a socket: served like one over HTTP, its events sent as frames within its client's credit.

It ends in exactly one frame: `done`, `response`, `cancelled` or `error`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.answers.answer import Answer, Framing
from gateway.answers.served import Served
from gateway.errors import ApiError
from gateway.runtime import Gateway
from gateway.serving.admission import slot
from gateway.websocket import frames
from gateway.websocket.frames import ChunkFraming
from gateway.websocket.sources import Source
from gateway.websocket.writer import SocketLost, SocketWriter
from tenants.contracts import KeyGrant

logger = logging.getLogger(__name__)


class SocketRequest:
    """`name` is its client's id of it, `window` its credit in chunks. `on_end` is called once, at its end."""

    def __init__(
        self,
        gateway: Gateway,
        grant: KeyGrant,
        source: Source,
        writer: SocketWriter,
        *,
        name: str,
        window: int | None,
        on_end: Callable[["SocketRequest"], None],
    ) -> None:
        self.name = name
        self._gateway = gateway
        self._grant = grant
        self._source = source
        self._writer = writer
        self._framing = ChunkFraming(name)
        self._stream_id = ""
        self._window = window
        self._sent = self._acked = source.after
        self._served: Served | None = None
        self._last_word: bytes | None = None
        self._has_begun = False
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: self._ended(on_end))

    def ack(self, seq: int) -> None:
        self._acked = max(self._acked, min(seq, self._sent))
        if self._served is not None:
            self._served.answer.wake.set()

    def cancel(self) -> None:
        """Its client does not want it any more."""
        if self._served is not None:
            self._source.end(self._served)
        self.end(frames.cancelled(self.name))

    def end(self, last_word: bytes) -> None:
        """Nothing but this frame is sent any more."""
        self._last_word = last_word
        if self._has_begun:  # a task that is cancelled before would run nothing
            self.task.cancel()

    def _ended(self, on_end: Callable[["SocketRequest"], None]) -> None:
        self._source.release()
        on_end(self)

    async def _run(self) -> None:
        self._has_begun = True
        status, code = 0, "client_left"
        try:
            last_word, status, code = await self._outcome()
            await self._writer.send(last_word)
        except SocketLost:
            pass
        finally:
            self._gateway.metrics.responses.labels(self._source.route, str(status), code).inc()

    async def _outcome(self) -> tuple[bytes, int, str]:
        """The last frame, with the status and the error code that HTTP would have. Raises SocketLost."""
        try:
            if self._last_word is None:
                return await self._serve(), 200, ""
            return self._last_word, 0, "client_left"
        except ApiError as error:
            failure = self._source.as_told(error)
        except asyncio.CancelledError:
            if self._last_word is None:
                raise
            self.task.uncancel()
            return self._last_word, 0, "client_left"
        except SocketLost:
            raise
        except Exception:
            logger.exception("a request of a socket failed")
            failure = ApiError("internal_error", "the gateway failed on this request")
        return frames.error(failure, self.name, final=True), failure.status, failure.code

    async def _serve(self) -> bytes:
        """The last frame. Raises ApiError, SocketLost."""
        gateway = self._gateway
        with _counted(gateway), slot(gateway, self._grant):
            served = await self._source.serve(self._framing_for)
            self._source.release()
            gateway.deliver_begin(served)
            try:
                self._served = served
                await self._writer.send(self._accepted(served))
                served.answer.is_announced = True
                return await self._deliver(served)
            finally:
                gateway.deliver_end(served)

    def _accepted(self, served: Served) -> bytes:
        request_id = self._stream_id or str(served.request_id)
        replayed = not served.is_computed_here
        return frames.accepted(self.name, request_id, replayed=replayed, headers=served.headers)

    def _framing_for(self, stream_id: str, is_numbered: bool) -> Framing:
        if is_numbered:
            self._stream_id = stream_id
        return self._framing

    async def _deliver(self, served: Served) -> bytes:
        answer = served.answer
        try:
            async with asyncio.timeout(None) as guard:
                answer.guard = guard
                await self._chunks_send(answer)
        except TimeoutError:
            logger.info("request %s: gave up writing", served.request_id)  # the watchdog cut it
        finally:
            answer.guard = answer.write_now = None
        if answer.failure is not None:
            raise answer.failure
        if answer.whole is not None:
            return frames.response(self.name, answer.renderer.whole(answer.whole))
        return self._framing.done(self._framing.last + (not self._framing.is_done))

    async def _chunks_send(self, answer: Answer) -> None:
        """All but `done`. Without credit for too long the watchdog cuts it; the socket itself has a bound."""
        while True:
            if not answer.pending and answer.is_ended:
                return
            if self._framing.is_done and len(answer.pending) == 1:
                answer.drop_pending()  # the end mark needs no credit
                return
            if answer.continued_by:
                number, answer.continued_by = answer.continued_by, 0
                await self._writer.send(frames.continued(self.name, number))
            elif answer.pending and self._has_credit:
                answer.writing_since = 0.0
                self._sent += 1
                await self._writer.send(answer.take_one())
            else:
                if answer.pending and not answer.writing_since:
                    answer.writing_since = time.monotonic()
                answer.ping_due = False
                answer.write_now = self._write_now  # the token frame's own callback writes, without waking us
                answer.wake.clear()
                await answer.wake.wait()
                answer.write_now = None

    @property
    def _has_credit(self) -> bool:
        return self._window is None or self._sent - self._acked < self._window

    def _write_now(self, chunk: bytes) -> bool:
        if self._framing.is_done or not self._has_credit or not self._writer.write_now(chunk):
            return False
        self._sent += 1
        return True


@contextmanager
def _counted(gateway: Gateway) -> Iterator[None]:
    gateway.open_requests += 1
    try:
        yield
    finally:
        gateway.open_requests -= 1
