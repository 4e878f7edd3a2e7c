"""Once a second over all open streams: deadlines, slow readers, unreachable replicas, keep-alives.

Everything a stream may wait for is bounded here, so the token path needs no timers of its own.
"""

import asyncio
import logging
import time

from gateway.errors import ApiError, overloaded
from gateway.limits import Limits
from gateway.metrics import Metrics
from gateway.stream import Stream
from gateway.upstream import Upstream

logger = logging.getLogger(__name__)


class Watchdog:
    def __init__(self, upstream: Upstream, limits: Limits, metrics: Metrics) -> None:
        self._upstream = upstream
        self._limits = limits
        self._metrics = metrics

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._limits.watchdog_interval_s)
            now = time.monotonic()
            for stream in list(self._upstream.streams.values()):
                self._check(stream, now)
            if now - self._upstream.dispatcher_joined_at > self._limits.dispatcher_grace_s:
                self._upstream.replicas.prune()

    def _check(self, stream: Stream, now: float) -> None:
        if not stream.is_settled and not stream.cancel_reason:
            self._deadline_check(stream, now)
            self._reachability_check(stream, now)
        if stream.frame is not None and not stream.disconnected:
            self._reader_check(stream, now)
            if now - stream.last_written_at >= self._limits.keepalive_s and not stream.writing_since:
                stream.ping_due = True
                stream.wake.set()

    def _deadline_check(self, stream: Stream, now: float) -> None:
        if now > stream.deadline_at + self._limits.deadline_grace_s:
            stream.fail(ApiError("deadline_exceeded", "the deadline passed"))

    def _reachability_check(self, stream: Stream, now: float) -> None:
        limits, upstream = self._limits, self._upstream
        if stream.worker:
            is_reachable = upstream.replicas.is_ready(stream.worker)
            if not is_reachable and now - stream.placed_at > limits.worker_unreachable_s:
                upstream.cancel(stream, "error")
                upstream.replicas.lost(stream, "the replica was lost: no connection to it")
        elif upstream.dispatcher_lost_at and now - upstream.dispatcher_lost_at > limits.dispatcher_grace_s:
            stream.ended_code = "no_dispatcher"
            stream.fail(overloaded("the dispatcher cannot be reached"))
            stream.settle()

    def _reader_check(self, stream: Stream, now: float) -> None:
        limits = self._limits
        if stream.pending_bytes <= limits.max_pending_bytes:
            stream.over_since = 0.0
        elif not stream.over_since:
            stream.over_since = now
        is_stuck = stream.writing_since and now - stream.writing_since > limits.slow_reader_s
        if (
            stream.pending_bytes > limits.max_pending_bytes_hard
            or (stream.over_since and now - stream.over_since > limits.slow_reader_s)
            or (is_stuck and stream.is_settled)  # the engine is done, only this reader is not
        ):
            self._cut(stream)

    def _cut(self, stream: Stream) -> None:
        if stream.guard is None:
            return
        self._metrics.slow_readers_cut.inc()
        logger.warning("request %s: cut, its client does not read", stream.request_id)
        stream.drop_pending()
        stream.failure = ApiError("slow_reader", "the stream was cut: its client does not read")
        self._upstream.cancel(stream, "cancelled")
        guard, stream.guard = stream.guard, None
        guard.reschedule(asyncio.get_running_loop().time())
