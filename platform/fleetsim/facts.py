"""Figures of a run that a scenario's checks may name, beside the fields of its result."""

from collections import Counter
from collections.abc import Mapping

from fleetsim.recorder import Recorder
from fleetsim.report.result import percentiles
from fleetsim.request import EXPIRED, REFUSED, Request
from fleetsim.rows import BATCH
from fleetsim.simulation import Simulation


def facts_of(simulation: Simulation, quiet: Simulation, seconds: float) -> dict[str, float]:
    """Of the measured `seconds`. Requests are those that arrived in them."""
    recorder, replicas = simulation.recorder, len(simulation.fleet.members)
    measured = [r for r in recorder.requests if recorder.begin_us <= r.arrival.at_us < recorder.end_us]
    others = counted(simulation)
    retries = simulation.clients.retries
    work_us = work_by_kind(recorder)
    all_us = max(sum(work_us.values()), 1)
    prompt_tokens = max(recorder.prompt_tokens, 1)
    return {
        "unserved": float(sum(not request.first_us for request in others)),
        "noise_tokens_per_s_per_replica": recorder.output_tokens["noise"] / seconds / replicas,
        "noise_weight_error": _weight_error(simulation),
        "prefix_hit_share": recorder.cached_tokens / prompt_tokens,
        "starts_after_deadline": float(sum(map(_is_late, recorder.requests))),
        "first_retries": float(retries.first),
        "first_retries_admitted": retries.first_admitted / max(retries.first, 1),
        "batch_share": work_us["batch"] / all_us,
        "batch_refused": float(
            sum(r.arrival.klass == BATCH and r.outcome == REFUSED for r in recorder.requests)
        ),
        "batch_late": float(sum(_is_batch_late(r, simulation.recorder.now_us) for r in recorder.requests)),
        "goodput_tokens_per_s": goodput_tokens(simulation) / seconds,
        "itl_above_40_ms": recorder.gaps["others"].share_above(40.0),
        "ttft_p95_ratio": _ttft_p95(simulation) / max(_ttft_p95(quiet), 1e-9),
        "expired": float(sum(request.outcome == EXPIRED for request in measured)),
    }


def counted(simulation: Simulation) -> list[Request]:
    """Interactive requests that are no noise and arrived in the measured time."""
    recorder = simulation.recorder
    return [
        request
        for request in recorder.requests
        if not request.is_noise
        and request.arrival.klass != BATCH
        and recorder.begin_us <= request.arrival.at_us < recorder.end_us
    ]


def work_by_kind(recorder: Recorder) -> Counter[str]:
    """Machine time that was charged, in microseconds: of others, noise, batch."""
    work: Counter[str] = Counter()
    for flow, us in recorder.work_us.items():
        work[recorder.kind(flow)] += us
    return work


def work_by_tenant(recorder: Recorder) -> Counter[str]:
    work: Counter[str] = Counter()
    for flow, us in recorder.work_us.items():
        work[flow.tenant] += us
    return work


def goodput_tokens(simulation: Simulation) -> int:
    """Output tokens in the measured time, but those of requests whose first token came too late."""
    recorder = simulation.recorder
    late = sum(
        request.output_tokens
        for request in recorder.requests
        if request.first_us > request.deadline_us and request.end_us
    )
    return max(sum(recorder.output_tokens.values()) - late, 0)


def value_at(path: str, result: object, facts: Mapping[str, float]) -> float:
    """Raises KeyError for a path that leads nowhere."""
    if path in facts:
        return facts[path]
    at = result
    for name in path.split("."):
        if not hasattr(at, name):
            raise KeyError(path)
        at = getattr(at, name)
    return float(at)  # type: ignore[arg-type]


def _is_late(request: Request) -> bool:
    """It was placed after its deadline, and had no first token yet: one that moved had."""
    has_moved = 0 < request.first_us < request.placed_us
    return request.placed_us > request.deadline_us and not has_moved


def _is_batch_late(request: Request, now_us: int) -> bool:
    """What was refused at once waits for nothing: `batch_refused` counts it."""
    if request.arrival.klass != BATCH or request.outcome == REFUSED:
        return False
    return (request.first_us or now_us) > request.deadline_us


def _weight_error(simulation: Simulation) -> float:
    """How far the noisy tenants' tokens are from their weights: the largest part off."""
    weights = {
        t: w for t, w in simulation.scenario.workload.weights().items() if t in simulation.recorder.noisy
    }
    tokens = {tenant: simulation.recorder.tenant_tokens[tenant] for tenant in weights}
    total, weight = sum(tokens.values()), sum(weights.values())
    if not total:
        return 0.0
    return max(abs(tokens[tenant] * weight / (total * weights[tenant]) - 1) for tenant in weights)


def _ttft_p95(simulation: Simulation) -> float:
    return percentiles([request.ttft_us / 1000 for request in counted(simulation) if request.first_us]).p95
