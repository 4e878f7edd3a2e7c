"""The end of a request: its usage is recorded, then what is kept of it, then its client hears the end."""

import asyncio
import logging
import time
from collections.abc import Collection
from contextlib import suppress

import msgspec

from billing.contracts import UsageRecord
from billing.idempotency import StoreUnavailable
from billing.pricing import billable_tokens, cost_micro_usd
from gateway.answer_parts import ChoiceEnd, Finished, Usage
from gateway.answers.recorder import Recorder
from gateway.errors import ApiError
from gateway.jobs.job import Job
from gateway.jobs.usage import usage_of
from gateway.jobs.usage_spool import SpoolUnavailable, UsageSpool
from gateway.metrics import Metrics
from gateway.upstream.dispatcher import Upstream
from gateway.upstream.stream import Stream

_STORE_RETRY_S = 2.0
_STORE_TRIES = 150
_FINAL_FAILURES = ("deadline_exceeded", "engine_error")  # of the request itself: a stream gets them again

logger = logging.getLogger(__name__)


class Conclusions:
    """`jobs` is the gateway's set of what is open: a job leaves it when its client has heard the end."""

    def __init__(self, upstream: Upstream, spool: UsageSpool, metrics: Metrics, jobs: set[Job]) -> None:
        self._upstream = upstream
        self._spool = spool
        self._metrics = metrics
        self._jobs = jobs
        self._all_told = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, job: Job) -> None:
        """All its streams are settled."""
        task = asyncio.create_task(self._conclude(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def told(self, timeout_s: float) -> None:
        """When all were, or after that time."""
        if self._jobs:
            self._all_told.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_told.wait()

    async def close(self, timeout_s: float) -> None:
        """When all were told, or after that time. What waits for a store is given up: its lease ends."""
        await self.told(timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _conclude(self, job: Job) -> None:
        try:
            await self._conclude_whole(job)
        except Exception:
            logger.exception("request %s could not be concluded", job.request_id)
            job.sink.failed(ApiError("internal_error", "the gateway failed on this request"))
        finally:
            job.reservation.cancel()  # where it was not settled, for a defect
            self._forget(job)

    def _forget(self, job: Job) -> None:
        """Idempotent."""
        if job not in self._jobs:
            return
        for stream in job.streams:
            self._upstream.forget(stream)
        self._jobs.discard(job)
        if not self._jobs:
            self._all_told.set()

    async def _conclude_whole(self, job: Job) -> None:
        outcome, usage = await self._outcome(job)
        recorder = job.recorder
        is_stored: bool | None = True
        if recorder is not None:
            try:
                is_stored = await _stored(recorder, job, outcome, usage)
                if is_stored is False:
                    outcome = _overtaken()
                await recorder.log(outcome)
            except Exception:  # a defect of what is kept: its client hears the end all the same
                logger.exception("request %s: its answer was not kept", job.request_id)
        if isinstance(outcome, Finished):
            job.sink.finished(outcome)
        else:
            job.sink.failed(outcome)
        self._forget(job)
        if recorder is not None and is_stored is None:
            await _store_later(recorder, job, outcome, usage)

    async def _outcome(self, job: Job) -> tuple[Finished | ApiError, Usage]:
        now_ms = time.time_ns() // 1_000_000
        records = [usage_of(job, stream, self._upstream.incarnation, now_ms) for stream in job.streams]
        usage = Usage(
            sum(record.prompt_tokens for record in records),
            sum(record.cached_tokens for record in records),
            sum(record.output_tokens for record in records),
        )
        for record, stream in zip(records, job.streams, strict=True):
            self._measure(job, stream, record)
        _reservation_settle(job, records)
        try:
            if len(records) == 1:  # nearly always: a task less
                await self._spool.append(records[0])
            else:
                await asyncio.gather(*(self._spool.append(record) for record in records))
        except SpoolUnavailable as error:
            logger.critical("request %s: usage not recorded: %s", job.request_id, error)
            message = "the usage of this request could not be recorded"
            return ApiError("usage_not_recorded", message), usage
        if job.failure is not None:
            return job.failure, usage
        if not job.is_complete:
            return ApiError("request_cancelled", "the request was cancelled", retry_after_ms=1_000), usage
        return Finished([end for stream in job.streams for end in _choice_ends(job, stream)], usage), usage

    def _measure(self, job: Job, stream: Stream, record: UsageRecord) -> None:
        metrics, model = self._metrics, record.model
        metrics.requests.labels(model, record.outcome).inc()
        metrics.tokens.labels(model, "prompt").inc(record.prompt_tokens)
        metrics.tokens.labels(model, "output").inc(record.output_tokens)
        if stream.first_token_at:
            metrics.ttft.labels(model).observe(stream.first_token_at - job.accepted_at)


def _reservation_settle(job: Job, records: list[UsageRecord]) -> None:
    """What was used is what bills. One that we did not run takes nothing, not even of requests a minute."""
    has_run = any(record.prompt_tokens for record in records)
    is_unwanted = any(stream.cancel_reason == "cancelled" for stream in job.streams)
    if not has_run and job.failure is not None and not is_unwanted:
        job.reservation.cancel()
        return
    price = job.price
    billable = [billable_tokens(record) for record in records]
    job.reservation.settle(
        prompt_tokens=sum(record.prompt_tokens for record in records),
        cached_tokens=sum(record.cached_tokens for record in records),
        output_tokens=sum(record.output_tokens for record in records),
        cost_micro_usd=0 if price is None else sum(cost_micro_usd(price, *tokens) for tokens in billable),
        is_whole=job.failure is None and job.is_complete,
    )


def _choice_ends(job: Job, stream: Stream) -> list[ChoiceEnd]:
    assert stream.end is not None
    ends = [
        stream.choice_ends.get(choice)
        or ChoiceEnd(stream.first_choice + choice, stream.end.reason, stream.received[choice])
        for choice in range(stream.submit.n)
    ]
    return [_told(end, job.stop_token_ids) for end in ends]


def _told(end: ChoiceEnd, stop_token_ids: Collection[int]) -> ChoiceEnd:
    """A token that the client did not name is the model's own end, which has no name."""
    if isinstance(end.stopped_by, int) and end.stopped_by not in stop_token_ids:
        return msgspec.structs.replace(end, stopped_by=None)
    return end


def _overtaken() -> ApiError:
    message = "another gateway has taken this request over; send it again with the same key"
    return ApiError("gateway_lost", message, retry_after_ms=1_000)


async def _stored(recorder: Recorder, job: Job, outcome: Finished | ApiError, usage: Usage) -> bool | None:
    """Before anybody is told. False: it is not the key's answer any more. None: not known yet."""
    has_begun = any(stream.has_begun for stream in job.streams)
    was_told = job.is_stream and has_begun  # a whole answer that failed told nothing: it may be tried again
    is_final = isinstance(outcome, Finished) or (outcome.code in _FINAL_FAILURES and was_told)
    try:
        return await recorder.store(outcome, usage, is_final=is_final)
    except StoreUnavailable as error:
        logger.warning("request %s: its key is recorded later: %s", job.request_id, error)
        return None


async def _store_later(recorder: Recorder, job: Job, outcome: Finished | ApiError, usage: Usage) -> None:
    for _ in range(_STORE_TRIES):
        await asyncio.sleep(_STORE_RETRY_S)
        if await _stored(recorder, job, outcome, usage) is not None:
            return
    logger.error("request %s: its key was not recorded", job.request_id)
