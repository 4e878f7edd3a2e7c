"""Runs a plan so that one bad row cannot fail its batch mates. No torch here.

A runner that raises is asked again for each half of the plan, down to single rows: the rows that raise alone
are reported as failed, all others have their tokens. Plans may be applied again, so no row is harmed.
"""

import logging

from gpuworker.engine.plan import Runner, StepPlan, StepResult
from gpuworker.wire.messages import RowKey

log = logging.getLogger(__name__)


def run_isolated(runner: Runner, plan: StepPlan) -> StepResult:
    tokens: dict[RowKey, int] = {}
    failed: dict[RowKey, str] = {}
    _run(runner, plan, tokens, failed)
    return StepResult(tokens, failed)


def _run(runner: Runner, plan: StepPlan, tokens: dict[RowKey, int], failed: dict[RowKey, str]) -> None:
    if not plan.rows:
        return
    try:
        sampled = runner.run(plan)
    except Exception as error:  # anything: a defect must cost one request, not the process
        if len(plan.rows) == 1:
            key = plan.rows[0].key
            log.exception("step failed for row %s", key)
            failed[key] = f"the model failed on this request ({type(error).__name__})"
            return
        log.warning("step of %d rows failed, trying its halves: %r", len(plan.rows), error)
    else:
        tokens.update(zip((row.key for row in plan.rows), sampled, strict=True))
        return
    middle = len(plan.rows) // 2
    for rows in (plan.rows[:middle], plan.rows[middle:]):
        slots = {row.slot for row in rows}
        starts = [start for start in plan.starts if start.slot in slots]
        _run(runner, StepPlan(rows, starts), tokens, failed)
