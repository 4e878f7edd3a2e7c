"""Generations whose client is gone go on while somebody follows their token log, and for a grace period.

Also ends what a client said it does not want any more, on whichever gateway it said so.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Set
from dataclasses import dataclass

from gateway.jobs.job import Job
from gateway.token_log.log import LogUnavailable, Marks, TokenLog

_CHECK_S = 0.5
_BATCH = 256  # jobs that are asked about by one command

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Left:
    """Its own client is gone. Times are monotonic seconds."""

    grace_s: float
    alone_since: float


class Outliving:
    """`jobs` is the gateway's own set of what is open."""

    def __init__(self, log: TokenLog, jobs: Set[Job]) -> None:
        self._log = log
        self._jobs = jobs
        self._left: dict[Job, _Left] = {}
        self._newcomers: list[Job] = []
        self._wake = asyncio.Event()

    def add(self, job: Job, grace_s: float) -> None:
        """Its client left: it ends when nobody has listened for that long."""
        self._left[job] = _Left(grace_s, time.monotonic())
        self._newcomers.append(job)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        checked_at = 0.0
        while True:
            await self._pause(checked_at + _CHECK_S - time.monotonic())
            jobs: Collection[Job] = self._newcomers
            self._newcomers = []
            if time.monotonic() - checked_at >= _CHECK_S:
                checked_at = time.monotonic()
                self._left = {job: left for job, left in self._left.items() if not job.is_concluding}
                jobs = [job for job in self._jobs if job in self._left or _is_followed(job)]
            await self._check([job for job in jobs if not _is_ending(job)])

    async def _pause(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _check(self, jobs: list[Job]) -> None:
        for first in range(0, len(jobs), _BATCH):
            some = jobs[first : first + _BATCH]
            marks = dict(zip(some, await self._marks(some), strict=True))
            for job in some:
                if marks[job].is_cancelled:
                    job.cancel("cancelled")
            over = [job for job in some if not _is_ending(job) and self._is_over(job, marks[job])]
            await asyncio.gather(*map(self._end, over))

    async def _marks(self, jobs: list[Job]) -> list[Marks]:
        return await self._log.marks([(job.grant.tenant_id, job.request_id, job.attempt) for job in jobs])

    def _is_over(self, job: Job, marks: Marks) -> bool:
        left, now = self._left.get(job), time.monotonic()
        if left is None:
            return False
        if not _is_followed(job):  # its log was lost meanwhile
            return True
        if marks.has_listeners:
            left.alone_since = now
        return now - left.alone_since >= left.grace_s and not marks.has_listeners

    async def _end(self, job: Job) -> None:
        """Says that it ends before it looks again: who comes now sees that, or is seen."""
        log, tenant_id = self._log, job.grant.tenant_id
        try:
            await log.cancel(tenant_id, job.request_id, job.attempt)
            if await log.has_listeners(tenant_id, job.request_id):
                await log.uncancel(tenant_id, job.request_id)
                return
        except LogUnavailable as error:
            logger.info("request %s ends without its client: %s", job.request_id, error)
        job.cancel("cancelled")


def _is_followed(job: Job) -> bool:
    return job.recorder is not None and job.recorder.is_followed


def _is_ending(job: Job) -> bool:
    return job.is_concluding or any(stream.cancel_reason for stream in job.streams)
