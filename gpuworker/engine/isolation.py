"""Runs a plan so that one bad row cannot fail its batch mates. No torch here.

A runner that raises is asked again for each half of the plan, down to single rows: the rows that raise alone
are reported as failed, all others have their results. Plans may be run again, so no row is harmed.
"""

import logging

from gpuworker.engine.plan import Runner, Sampled, SequenceKey, StepPlan, StepResult

log = logging.getLogger(__name__)


class RunnerLost(Exception):
    """The runner cannot compute any more, whatever the plan: the replica has failed, not a row."""


def run_isolated(runner: Runner, plan: StepPlan) -> StepResult:
    """Raises RunnerLost."""
    rows: dict[SequenceKey, Sampled] = {}
    failed: dict[SequenceKey, str] = {}
    _run(runner, plan, rows, failed)
    return StepResult(rows, failed)


def _run(
    runner: Runner, plan: StepPlan, rows: dict[SequenceKey, Sampled], failed: dict[SequenceKey, str]
) -> None:
    if not plan.rows:
        return
    try:
        sampled = runner.run(plan)
    except RunnerLost:
        raise
    except Exception as error:  # anything: a defect must cost one request, not the process
        if len(plan.rows) == 1:
            key = plan.rows[0].key
            log.exception("step failed for row %s", key)
            failed[key] = f"the model failed on this request ({type(error).__name__})"
            return
        log.warning("step of %d rows failed, trying its halves: %r", len(plan.rows), error)
    else:
        rows.update(zip((row.key for row in plan.rows), sampled, strict=True))
        return
    middle = len(plan.rows) // 2
    for half in (plan.rows[:middle], plan.rows[middle:]):
        slots = {row.slot for row in half}
        starts = [start for start in plan.starts if start.slot in slots]
        masks = {slot: mask for slot, mask in plan.masks.items() if slot in slots}
        _run(runner, StepPlan(half, starts, masks=masks), rows, failed)
