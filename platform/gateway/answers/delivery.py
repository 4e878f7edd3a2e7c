"""Carries one answer over one HTTP exchange: events as they come, or one body at the end."""

import asyncio
import logging
import time

from gateway import sse
from gateway.answers.answer import Answer
from gateway.http.exchange import JSON_HEADERS, Exchange, HeaderList
from gateway.limits import Limits

_WRITE_BYTES = 16 * 1024  # of which the watchdog sees progress

logger = logging.getLogger(__name__)


class Delivery:
    """`headers` are added to a response that succeeds."""

    def __init__(self, exchange: Exchange, answer: Answer, limits: Limits, headers: HeaderList) -> None:
        self._exchange = exchange
        self._answer = answer
        self._limits = limits
        self._headers = headers

    async def run(self) -> None:
        """Until everything is sent, or nobody reads. Raises ApiError while the status is still open."""
        answer = self._answer
        try:
            async with asyncio.timeout(None) as guard:
                answer.guard = guard
                if await (self._events_write() if answer.is_stream else self._whole_write()):
                    return
        except TimeoutError:
            logger.info("request %s: gave up writing", self._exchange.request_id)  # the watchdog cut it
        except OSError:
            answer.leave()  # some servers raise on a closed connection
        finally:
            answer.guard = answer.write_now = None
        if not answer.left:
            await self._failure_write()

    async def _whole_write(self) -> bool:
        answer = self._answer
        while not (answer.is_ended or answer.left):
            answer.wake.clear()
            await answer.wake.wait()
        if answer.whole is None or answer.left:
            return False
        body = answer.renderer.whole(answer.whole)
        answer.writing_since = time.monotonic()
        headers = [*JSON_HEADERS, *self._headers, *answer.renderer.whole_headers(answer.whole)]
        await self._exchange.respond(200, body, headers)
        return True

    async def _events_write(self) -> bool:
        """Whether the last one was written."""
        answer, exchange = self._answer, self._exchange
        while not answer.left:
            if answer.pending:
                if await self._pending_write():
                    return True
            elif answer.is_ended:
                if answer.failure is None:  # what was resumed had been sent before
                    await self._write(b"", more=False)
                return answer.failure is None
            elif answer.continued_by:
                number, answer.continued_by = answer.continued_by, 0
                await self._write(sse.continued(number), more=True)
            elif answer.ping_due:
                answer.ping_due = False
                await self._write(sse.PING, more=True)
            else:
                answer.write_now = exchange.write_now  # the frame's own callback writes, without waking us
                answer.wake.clear()
                await answer.wake.wait()
                answer.write_now = None
        return False

    async def _pending_write(self) -> bool:
        """Whether the last event was among them."""
        answer = self._answer
        data = answer.take(_WRITE_BYTES)
        is_last = answer.is_ended and not answer.pending and answer.failure is None
        await self._write(data, more=not is_last)
        return is_last

    async def _write(self, data: bytes, *, more: bool) -> None:
        answer = self._answer
        answer.writing_since = time.monotonic()
        if not self._exchange.has_begun:
            await self._exchange.begin(200, [*sse.HEADERS, *self._headers])
            answer.is_announced = True
        await self._exchange.body(data, more=more)
        answer.writing_since = 0.0
        answer.last_written_at = time.monotonic()

    async def _failure_write(self) -> None:
        failure = self._answer.failure
        assert failure is not None
        if not self._exchange.has_begun:
            raise failure
        if not self._answer.is_stream:  # part of a whole answer was sent: there is nothing to say it with
            self._exchange.abort()
            return
        try:
            async with asyncio.timeout(self._limits.final_write_s):
                await self._exchange.body(self._answer.failure_events(), more=False)
        except TimeoutError:
            self._exchange.abort()  # a close would wait for ever for bytes nobody reads
