"""Decides where an answer comes from: computed now, another's that still runs, or one that is stored."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

import msgspec

from billing.idempotency import Claim, Reused, Running, Stored
from gateway.answer_parts import Sink
from gateway.answers.answer import Answer
from gateway.answers.recorder import Recorder
from gateway.answers.served import FramingFor, Served, sse_framing
from gateway.answers.stream_id import StreamId
from gateway.errors import ApiError, stopping
from gateway.http.exchange import ClientLeft
from gateway.jobs.job import Job
from gateway.quotas.quotas import Reservation
from gateway.runtime import Gateway
from gateway.serving.attachment import attach, in_progress, replay
from gateway.serving.claiming import claim, let_go
from gateway.serving.idempotency import fingerprint_of, key_of
from gateway.serving.reserving import reserve
from gateway.serving.submission import Call, Prepared, prepare, submit
from gateway.token_log.entries import Opened

RESUME_HEADER = b"x-stream-resume"
_RESUME_VALUES = {b"1": True, b"true": True, b"0": False, b"false": False}
_FIRST_WAIT_S = 0.05  # before the key is asked for again; each wait is twice the last one
_MAX_WAIT_S = 1.0


async def serve(
    gateway: Gateway,
    call: Call,
    framing_for: FramingFor = sse_framing,
    is_gone: Callable[[], bool] = lambda: False,
) -> Served:
    """Raises ApiError, or ClientLeft; then nothing is held. `is_gone`: the client does not wait any more."""
    key, is_resume_asked = key_of(call.headers), _is_resume_asked(call.headers)
    prepared = await prepare(gateway, call)
    is_resumable = prepared.generation.resumable or is_resume_asked
    is_resumable &= prepared.generation.stream and not call.grant.zero_retention
    if key is None:
        return await _compute(gateway, prepared, framing_for, call.request_id, is_resumable=is_resumable)
    fingerprint, wait_s = fingerprint_of(call.body, call.path, call.grant.data_key), _FIRST_WAIT_S
    while True:
        found = await claim(gateway, call.grant, key, fingerprint, call.request_id)
        match found:
            case Claim():
                return await _compute_claimed(gateway, prepared, framing_for, found, is_resumable, is_gone)
            case Reused():
                message = "this idempotency key was used with another request; use a new one"
                raise ApiError("idempotency_key_reused", message, param="idempotency-key")
            case Stored():
                gateway.key_require(call.grant)
                return await replay(gateway, call.grant, found, framing_for, is_numbered=is_resumable)
            case Running():
                served = await _attached(gateway, prepared, framing_for, found, is_resumable)
                if served is not None:
                    return served
        if is_gone():
            raise ClientLeft
        _judge_again(gateway, prepared)
        await asyncio.sleep(min(wait_s, max(prepared.deadline_at - time.monotonic(), 0.0)))
        wait_s = min(wait_s * 2, _MAX_WAIT_S)


def _is_resume_asked(headers: Mapping[bytes, bytes]) -> bool:
    """Raises ApiError: a client that believes it opted in must not find out when its stream breaks."""
    value = headers.get(RESUME_HEADER, b"0").lower()
    if value not in _RESUME_VALUES:
        raise ApiError("invalid_value", "x-stream-resume must be 1 or 0", param="x-stream-resume")
    return _RESUME_VALUES[value]


async def _attached(
    gateway: Gateway, prepared: Prepared, framing_for: FramingFor, found: Running, is_resumable: bool
) -> Served | None:
    """None while there is nothing to attach to: it has no log, its gateway is dead, or it is being ended."""
    grant, log = prepared.call.grant, gateway.token_log
    if not await log.is_alive(found.owner):
        return None
    # Whoever ends it says so first and looks for listeners then: one of the two sees the other.
    await log.listen(grant.tenant_id, found.request_id)
    if await log.is_cancelled(grant.tenant_id, found.request_id, found.attempt):
        return None
    return await attach(
        gateway,
        grant,
        StreamId(found.request_id, found.attempt),
        framing_for,
        is_numbered=is_resumable,
        deadline_at=prepared.deadline_at,
    )


def _judge_again(gateway: Gateway, prepared: Prepared) -> None:
    """Of a request that waits for another one. Raises ApiError."""
    if gateway.is_stopping:
        raise stopping()
    gateway.key_require(prepared.call.grant)
    if time.monotonic() >= prepared.deadline_at:
        raise in_progress()


async def _compute_claimed(
    gateway: Gateway,
    prepared: Prepared,
    framing_for: FramingFor,
    claim: Claim,
    is_resumable: bool,
    is_gone: Callable[[], bool],
) -> Served:
    try:
        if is_gone():
            raise ClientLeft
        return await _compute(
            gateway, prepared, framing_for, claim.request_id, claim=claim, is_resumable=is_resumable
        )
    except BaseException:
        await let_go(gateway, prepared.call.grant.tenant_id, claim)
        raise


async def _compute(
    gateway: Gateway,
    prepared: Prepared,
    framing_for: FramingFor,
    request_id: UUID,
    *,
    claim: Claim | None = None,
    is_resumable: bool,
) -> Served:
    reservation = await reserve(gateway, prepared)
    try:
        return _begin(gateway, prepared, framing_for, request_id, reservation, claim, is_resumable)
    except BaseException as error:
        reservation.cancel()
        if isinstance(error, ApiError):
            error.headers += reservation.headers
        raise


def _begin(
    gateway: Gateway,
    prepared: Prepared,
    framing_for: FramingFor,
    request_id: UUID,
    reservation: Reservation,
    claim: Claim | None,
    is_resumable: bool,
) -> Served:
    """Raises ApiError when nothing was submitted."""
    call, ask, head = prepared.call, prepared.ask, prepared.head(request_id)
    attempt = 1 if claim is None else claim.attempt
    stream_id = str(StreamId(request_id, attempt))
    answer = Answer(
        call.dialect.renderer(ask.options, head, prepared.tokenizer),
        framing_for(stream_id, is_resumable) if ask.generation.stream else None,
        choices=head.choices,
        prompts=len(head.prompt_tokens),
        now=time.monotonic(),
        pause_bytes=gateway.limits.pause_bytes,
    )
    recorder: Recorder | None = None
    if claim is not None or is_resumable:
        recorder = _recorder_make(gateway, prepared, request_id, attempt, claim, answer)
    sink = recorder or answer
    try:
        job = submit(
            gateway,
            prepared,
            request_id=request_id,
            attempt=attempt,
            sink=sink,
            reservation=reservation,
            recorder=recorder,
        )
    except BaseException:
        if recorder is not None:
            recorder.abandon()
        raise
    if recorder is None:
        answer.on_backlog = partial(gateway.upstream.pause, job.streams)
    grace_s = gateway.limits.resume_grace_s if is_resumable else 0.0
    headers = [*reservation.headers, *prepared.degradation.headers()]
    return Served(
        answer, request_id, call.grant, partial(_leave, gateway, job, answer, grace_s), headers=headers
    )


def _recorder_make(
    gateway: Gateway, prepared: Prepared, request_id: UUID, attempt: int, claim: Claim | None, sink: Sink
) -> Recorder:
    call, grant = prepared.call, prepared.call.grant
    opened = Opened(
        dialect=call.dialect.name,
        options=msgspec.msgpack.encode(prepared.ask.options),
        head=prepared.head(request_id),
        deadline_ms=time.time_ns() // 1_000_000 + int((prepared.deadline_at - time.monotonic()) * 1000),
        stream=prepared.generation.stream,
    )
    writer = None
    if not grant.zero_retention:
        writer = gateway.token_log.open(grant.tenant_id, request_id, attempt, grant.data_key, opened)
    return Recorder(
        opened=opened,
        grant=grant,
        writer=writer,
        store=gateway.idempotency,
        claim=claim,
        sink=sink,
        max_stored_bytes=gateway.limits.max_stored_answer_bytes,
    )


def _leave(gateway: Gateway, job: Job, answer: Answer, grace_s: float) -> None:
    """The client is gone, or has everything. One that does not know its stream's name yet cannot resume."""
    if job.is_concluding:
        return
    if job.recorder is None or not job.recorder.is_followed:
        job.cancel("cancelled")
    else:
        gateway.outlive(job, grace_s if answer.is_announced else 0.0)
