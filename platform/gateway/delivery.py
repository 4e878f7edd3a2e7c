"""Writes one stream to its client: events as they come, or one body at the end.

The usage record is on disk before the final event or body is written, so whoever saw the end is billed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from billing.contracts import UsageRecord
from gateway import sse
from gateway.errors import ApiError
from gateway.http import Exchange
from gateway.limits import Limits
from gateway.replies import Reply, usage_object
from gateway.stream import Stream
from gateway.usage_spool import SpoolUnavailable

_WRITE_BYTES = 64 * 1024

logger = logging.getLogger(__name__)

Conclude = Callable[[Stream], Awaitable[UsageRecord]]


class Delivery:
    """`conclude` waits until the stream is settled and records its usage. Raises SpoolUnavailable."""

    def __init__(
        self, exchange: Exchange, stream: Stream, reply: Reply, limits: Limits, conclude: Conclude
    ) -> None:
        self._exchange = exchange
        self._stream = stream
        self._reply = reply
        self._limits = limits
        self._conclude = conclude
        self._opening = reply.opening(include_usage=stream.generation.include_usage)

    async def run(self) -> None:
        """Raises ApiError while the status is still open."""
        stream = self._stream
        try:
            async with asyncio.timeout(None) as guard:
                stream.guard = guard
                await (self._events_write() if stream.frame is not None else self._end_wait())
        except TimeoutError:
            logger.info("request %s: gave up writing", stream.request_id)  # the watchdog cut it
        except OSError:
            stream.leave()  # some servers raise on a closed connection
        finally:
            stream.guard = None
        try:
            record = await self._conclude(stream)
        except SpoolUnavailable as error:
            logger.critical("request %s: usage not recorded: %s", stream.request_id, error)
            stream.failure = ApiError("usage_not_recorded", "the usage of this request could not be recorded")
            record = None
        if not stream.disconnected:
            await self._last_write(record)

    async def _end_wait(self) -> None:
        stream = self._stream
        while not (stream.is_settled or stream.failure or stream.disconnected):
            stream.wake.clear()
            await stream.wake.wait()

    async def _events_write(self) -> None:
        stream = self._stream
        while not stream.disconnected:
            if stream.pending:
                await self._write(stream.take(_WRITE_BYTES))
            elif stream.failure is not None or stream.is_settled:
                return
            elif stream.ping_due:
                stream.ping_due = False
                await self._write(sse.PING, is_comment=True)
            else:
                stream.wake.clear()
                await stream.wake.wait()

    async def _write(self, data: bytes, *, is_comment: bool = False) -> None:
        stream = self._stream
        stream.writing_since = time.monotonic()
        if not self._exchange.has_begun:
            await self._exchange.begin(200, sse.HEADERS)
        if not is_comment:
            data, self._opening = self._opening + data, b""
        await self._exchange.body(data, more=True)
        stream.writing_since = 0.0
        stream.last_written_at = time.monotonic()

    async def _last_write(self, record: UsageRecord | None) -> None:
        failure, stream = self._stream.failure, self._stream
        if failure is not None and not self._exchange.has_begun:
            raise failure
        timeout_s = self._limits.slow_reader_s
        if failure is not None and failure.code == "slow_reader":
            timeout_s = self._limits.final_write_s
        try:
            async with asyncio.timeout(timeout_s):
                if stream.frame is None:
                    await self._whole_write(record)
                else:
                    await self._closing_write(record)
        except TimeoutError:
            self._exchange.abort()  # a close would wait for ever for bytes nobody reads

    async def _whole_write(self, record: UsageRecord | None) -> None:
        stream = self._stream
        assert record is not None
        assert stream.end is not None
        text = b"".join(stream.pending).decode()
        stream.drop_pending()
        whole = self._reply.whole(text, stream.end.reason, usage_object(record))
        await self._exchange.respond(200, msgspec.json.encode(whole))

    async def _closing_write(self, record: UsageRecord | None) -> None:
        stream = self._stream
        if not self._exchange.has_begun:
            await self._exchange.begin(200, sse.HEADERS)
        if stream.failure is not None:
            closing = sse.error_event(stream.failure.envelope())
        else:
            assert record is not None
            assert stream.end is not None
            closing = self._opening + self._reply.closing(
                stream.end.reason,
                usage_object(record),
                include_usage=stream.generation.include_usage,
            )
        await self._exchange.body(closing, more=False)
