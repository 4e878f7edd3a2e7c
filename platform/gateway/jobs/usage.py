"""The usage record of a submitted prompt, from the worker's final word or from what arrived without it."""

from billing.contracts import UsageRecord
from gateway.jobs.job import Job
from gateway.upstream.stream import Stream

_OUTCOMES = {
    "stop": "completed",
    "length": "completed",
    "cancelled": "cancelled",
    "deadline": "deadline",
    "deadline_exceeded": "deadline",
    "replica_lost": "replica_lost",
    "gateway_lost": "gateway_lost",
}
_OUR_FAILURES = ("replica_lost", "error")


def stream_outcome(job: Job, stream: Stream) -> str:
    if job.failure is not None and job.failure.code == "stream_gap":
        return "error"
    if stream.end is not None:
        return _OUTCOMES.get(stream.end.reason, "error")
    return _OUTCOMES.get(stream.ended_code or stream.cancel_reason, "error")


def usage_of(job: Job, stream: Stream, gateway_incarnation: str, unix_ms: int) -> UsageRecord:
    """Without a final count (replica lost, or silent after a cancel) only tokens that arrived here count.

    When we failed, what bills is what the client was given: nothing of an answer that is not streamed.
    """
    submit, end, outcome = stream.submit, stream.end, stream_outcome(job, stream)
    if outcome == "completed" and not job.is_stream and _is_our_failure(job):
        outcome = "error"  # another prompt of the same answer failed: this one is not given out either
    if end is not None:
        prompt, cached, output = end.prompt_tokens, end.cached_tokens, end.output_tokens
        if submit.emitted:  # it may not have begun where it was to go on
            prompt = stream.prompt_tokens
    elif stream.has_begun:
        prompt, cached, output = stream.prompt_tokens, 0, stream.output_tokens
    else:
        prompt = cached = output = 0
    if outcome in _OUR_FAILURES:
        output = min(output, stream.output_tokens) if job.is_stream else 0
    return UsageRecord(
        request_id=submit.request_id,
        attempt=submit.attempt,
        tenant_id=submit.tenant,
        key_id=str(job.grant.key_id),
        model=submit.model,
        digest=submit.digest,
        klass=submit.klass,
        worker=stream.worker_id,
        worker_incarnation=stream.worker,
        gateway=gateway_incarnation,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        outcome=outcome,
        occurred_at_ms=unix_ms,
        replica_attempts=submit.moves + 1,
        lost_cause=stream.lost_cause,
        recomputed_tokens=stream.recomputed_tokens,
    )


def _is_our_failure(job: Job) -> bool:
    return any(stream_outcome(job, stream) in _OUR_FAILURES for stream in job.streams)
