"""Decides where an answer comes from: computed now, another's that still runs, or one that is stored."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

import msgspec

from billing.idempotency import Claim, Reused, Running, Stored, StoreUnavailable
from gateway.answer import Answer
from gateway.answer_parts import Sink
from gateway.attachment import attach, replay
from gateway.errors import ApiError, overloaded
from gateway.idempotency import fingerprint_of, key_of
from gateway.job import Job
from gateway.outliving import outlive
from gateway.recorder import Recorder
from gateway.runtime import Gateway
from gateway.served import FramingFor, Served, sse_framing
from gateway.submission import Call, Prepared, prepare, submit
from gateway.token_log.entries import Opened

RESUME_HEADER = b"x-stream-resume"
_ATTACH_RETRY_S = 0.25


async def serve(
    gateway: Gateway,
    call: Call,
    framing_for: FramingFor = sse_framing,
    is_gone: Callable[[], bool] = lambda: False,
) -> Served:
    """Raises ApiError; then nothing is held. `is_gone`: the client does not wait any more."""
    key = key_of(call.headers)
    prepared = await prepare(gateway, call)
    is_resumable = prepared.generation.resumable or call.headers.get(RESUME_HEADER) == b"1"
    is_resumable &= prepared.generation.stream and not call.grant.zero_retention
    if key is None:
        return _compute(gateway, prepared, framing_for, call.request_id, is_resumable=is_resumable)
    fingerprint = fingerprint_of(call.body, call.path)
    while True:
        try:
            found = await gateway.idempotency.claim(call.grant.tenant_id, key, fingerprint, call.request_id)
        except StoreUnavailable as error:
            message = "requests with an idempotency key cannot be served now: their records cannot be reached"
            raise overloaded(message, 5_000) from error
        served: Served | None = None
        match found:
            case Claim():
                return await _compute_claimed(gateway, prepared, framing_for, found, is_resumable)
            case Reused():
                message = "this idempotency key was used with another request; use a new one"
                raise ApiError("idempotency_key_reused", message, param="idempotency-key")
            case Stored():
                return await replay(gateway, call.grant, found, framing_for, is_numbered=is_resumable)
            case Running() if await gateway.token_log.is_alive(found.owner):
                served = await attach(
                    gateway, call.grant, found.request_id, framing_for, is_numbered=is_resumable
                )
        if served is not None:
            return served
        if time.monotonic() + _ATTACH_RETRY_S > prepared.deadline_at or is_gone():
            message = "the first request with this idempotency key is still running"
            raise ApiError("request_in_progress", message, retry_after_ms=1_000)
        await asyncio.sleep(_ATTACH_RETRY_S)


async def _compute_claimed(
    gateway: Gateway, prepared: Prepared, framing_for: FramingFor, claim: Claim, is_resumable: bool
) -> Served:
    try:
        return _compute(
            gateway, prepared, framing_for, claim.request_id, claim=claim, is_resumable=is_resumable
        )
    except BaseException:
        await gateway.idempotency.fail(prepared.call.grant.tenant_id, claim)
        raise


def _compute(
    gateway: Gateway,
    prepared: Prepared,
    framing_for: FramingFor,
    request_id: UUID,
    *,
    claim: Claim | None = None,
    is_resumable: bool,
) -> Served:
    call, ask, head = prepared.call, prepared.ask, prepared.head(request_id)
    answer = Answer(
        call.dialect.renderer(ask.options, head, prepared.tokenizer),
        framing_for(request_id, is_resumable) if ask.generation.stream else None,
        choices=head.choices,
        prompts=len(head.prompt_tokens),
        now=time.monotonic(),
        pause_bytes=gateway.limits.pause_bytes,
    )
    recorder: Recorder | None = None
    attempt = 1 if claim is None else claim.attempt
    if claim is not None or is_resumable:
        recorder = _recorder_make(gateway, prepared, request_id, attempt, claim, answer)
    job = submit(
        gateway, prepared, request_id=request_id, attempt=attempt, sink=recorder or answer, recorder=recorder
    )
    if recorder is None:
        answer.on_backlog = partial(gateway.upstream.pause, job.streams)
    grace_s = gateway.limits.resume_grace_s if is_resumable else 0.0
    return Served(answer, request_id, call.grant, partial(_leave, gateway, job, grace_s))


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


def _leave(gateway: Gateway, job: Job, grace_s: float) -> None:
    """The client is gone, or has everything."""
    if job.is_concluding:
        return
    if job.recorder is None or not job.recorder.is_followed:
        job.cancel("cancelled")
    else:
        gateway.spawn(outlive(gateway, job, grace_s))
