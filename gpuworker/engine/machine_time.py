"""Measures what steps take: the pacer learns from it, and it is charged to the flows whose rows they held. No
torch, no clock."""

from collections.abc import Mapping
from itertools import accumulate

from gpuworker.engine.plan import StepPlan
from gpuworker.engine.stats import Counters
from policy.flow import Flow
from policy.pacing import StepPacer

Work = tuple[Flow, int]  # microseconds


class StepMeter:
    """A step lasts, for the streams in it, from the end of the one before if that left work. One without rows
    counts for nothing."""

    def __init__(self, pacer: StepPacer | None, counters: Counters) -> None:
        self._pacer = pacer
        self._counters = counters
        self._since_ms: float | None = None  # end of the last step, if it left work

    def measure(
        self,
        plan: StepPlan,
        costs: Mapping[Flow, float],
        begun_ms: float,
        ended_ms: float,
        *,
        has_failed: bool,
    ) -> list[Work]:
        """Its time, divided. `costs`: predicted milliseconds of each flow's rows."""
        self._counters.batch_rows = len(plan.rows)
        if not plan.rows:
            return []
        since_ms = begun_ms if self._since_ms is None else self._since_ms
        self._counters.step_ms = ended_ms - since_ms
        if self._pacer is not None and not has_failed and not plan.moves:
            self._pacer.observe(
                plan.decode_rows,
                plan.prefill_tokens,
                plan.context_tokens,
                ended_ms - since_ms,
                plan.prefill_pairs,
            )
        # Both ends are rounded alike, so that the microseconds of steps in a row add up.
        return time_divide(round(ended_ms * 1000) - round(since_ms * 1000), costs)

    def end(self, ended_ms: float, *, left_work: bool) -> None:
        self._since_ms = ended_ms if left_work else None


def time_divide(step_us: int, costs: Mapping[Flow, float]) -> list[Work]:
    """In proportion to what each flow's rows were predicted to cost, to the microsecond: the parts add up to
    `step_us`. Equal parts where nothing is predicted to cost anything."""
    until = list(accumulate(costs.values()))
    if until[-1] <= 0:
        until = list(range(1, len(costs) + 1))
    parts: list[Work] = []
    given_us = 0
    for flow, cost in zip(costs, until, strict=True):
        until_us = round(cost / until[-1] * step_us)
        parts.append((flow, until_us - given_us))
        given_us = until_us
    return parts
