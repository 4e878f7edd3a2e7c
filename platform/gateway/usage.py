"""The usage record of a submitted request, from the worker's final word or from what arrived without it."""

from billing.contracts import UsageRecord
from gateway.stream import Stream
from gpuworker.wire.messages import pack_ids

ATTEMPT = 1
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
_BYTES_PER_ID = len(pack_ids([0]))


def usage_outcome(stream: Stream) -> str:
    if stream.failure is not None and stream.failure.code == "stream_gap":
        return "error"
    if stream.end is not None:
        return _OUTCOMES.get(stream.end.reason, "error")
    return _OUTCOMES.get(stream.ended_code or stream.cancel_reason, "error")


def usage_of(stream: Stream, gateway_incarnation: str, unix_ms: int) -> UsageRecord:
    """Without a final count (replica lost, or silent after a cancel) only tokens that arrived here count.

    When we failed, what bills is what the client was given: nothing of an answer that is not streamed.
    """
    end, outcome = stream.end, usage_outcome(stream)
    if end is not None:
        prompt, cached, output = end.prompt_tokens, end.cached_tokens, end.output_tokens
    elif stream.received:
        prompt, cached, output = len(stream.submit.prompt) // _BYTES_PER_ID, 0, stream.received
    else:
        prompt = cached = output = 0
    if outcome in _OUR_FAILURES:
        output = min(output, stream.received) if stream.frame is not None else 0
    return UsageRecord(
        request_id=str(stream.request_id),
        attempt=ATTEMPT,
        tenant_id=str(stream.grant.tenant_id),
        key_id=str(stream.grant.key_id),
        model=stream.route.slug,
        digest=stream.route.digest,
        klass=stream.generation.klass,
        worker=stream.worker_id,
        worker_incarnation=stream.worker,
        gateway=gateway_incarnation,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        outcome=outcome,
        occurred_at_ms=unix_ms,
    )
