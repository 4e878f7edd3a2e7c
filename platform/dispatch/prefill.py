"""Which worker computes the prompt of a row that was placed on another one."""

from collections.abc import Iterable

from dispatch.fleet import PREFILL, Worker
from dispatch.requests import Request
from policy.placement import prefill_choose


def helper_choose(
    workers: Iterable[Worker], request: Request, worker: Worker, now_ms: float
) -> Worker | None:
    """None: `worker`, where the row was placed, computes it."""
    submit = request.submit
    if submit is None or not worker.hello.kv_dtype or submit.sampling.prompt_logprobs >= 0:
        return None  # the row could not use what was computed elsewhere
    weights = (worker.hello.digest, worker.hello.kv_dtype)
    helpers = {
        other.hello.incarnation: other
        for other in workers
        if other.hello.serves == PREFILL
        and (other.hello.digest, other.hello.kv_dtype) == weights
        and other.may_take(now_ms)
    }
    if not helpers:
        return None
    replicas = [helper.prefill_replica() for helper in helpers.values()]
    chosen = prefill_choose(replicas, request.prompt_tokens, worker.prefixes.cached_tokens(submit))
    return helpers[chosen.key] if chosen else None
