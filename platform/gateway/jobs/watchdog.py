"""Once a second over everything that waits: deadlines, silent replicas, slow readers, keep-alives.

Everything a request may wait for is bounded here, so the token path needs no timers of its own.
"""

import asyncio
import logging
import time
from collections.abc import Set

from gateway.answers.answer import Answer
from gateway.errors import ApiError
from gateway.jobs.job import Job
from gateway.limits import Limits
from gateway.metrics import Metrics
from gateway.upstream.dispatcher import Upstream
from gateway.upstream.stream import Stream

logger = logging.getLogger(__name__)


class Watchdog:
    """`jobs` and `answers` are the gateway's own sets of what is open."""

    def __init__(
        self, upstream: Upstream, jobs: Set[Job], answers: Set[Answer], limits: Limits, metrics: Metrics
    ) -> None:
        self._upstream = upstream
        self._jobs = jobs
        self._answers = answers
        self._limits = limits
        self._metrics = metrics

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._limits.watchdog_interval_s)
            now = time.monotonic()
            for job in list(self._jobs):
                self._job_check(job, now)
            for answer in list(self._answers):
                self._answer_check(answer, now)
            if now - self._upstream.dispatcher_joined_at > self._limits.dispatcher_grace_s:
                self._upstream.replicas.prune()

    def _job_check(self, job: Job, now: float) -> None:
        if now > job.deadline_at + self._limits.deadline_grace_s and job.failure is None:
            job.fail_late("the deadline passed")
        job.reservation.produced(sum(stream.output_tokens for stream in job.streams))
        for stream in job.streams:
            if stream.is_settled:
                continue
            if not stream.cancel_reason:
                self._reachability_check(stream, now)
            elif now - stream.cancelled_at > self._limits.settle_s:
                self._metrics.settle_timeouts.inc()
                logger.warning("request %s: no final count after its cancel", stream.request_id)
                stream.settle()

    def _reachability_check(self, stream: Stream, now: float) -> None:
        limits, upstream = self._limits, self._upstream
        if stream.worker:
            is_reachable = upstream.replicas.is_ready(stream.worker)
            if not is_reachable and now - stream.placed_at > limits.worker_unreachable_s:
                upstream.replicas.unreachable(stream)
        elif upstream.dispatcher_lost_at and now - upstream.dispatcher_lost_at > limits.dispatcher_grace_s:
            stream.ended_code = "no_dispatcher"
            stream.owner.fail(upstream.dispatcher_away())
            stream.settle()

    def _answer_check(self, answer: Answer, now: float) -> None:
        limits = self._limits
        if answer.was_written:
            answer.was_written, answer.last_written_at = False, now
        is_stuck = answer.writing_since and now - answer.writing_since > limits.slow_reader_s
        if is_stuck or answer.pending_bytes > limits.max_pending_bytes:
            self._metrics.slow_readers_cut.inc()
            logger.warning("an answer was cut: its client does not read")
            answer.cut(ApiError("slow_reader", "the stream was cut: its client does not read"))
        elif (
            answer.is_stream
            and now - answer.last_written_at >= limits.keepalive_s
            and not answer.writing_since
            and not answer.is_ended
        ):
            answer.ping_due = True
            answer.wake.set()
