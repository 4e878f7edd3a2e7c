"""Rows computed plan by plan on a ModelRunner, without a scheduler: the test chooses blocks and chunks."""

from collections.abc import Sequence

from gpuworker.engine.block_pool import blocks_for
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import PlanRow, RowStart, Sampled, SequenceKey, StepPlan
from gpuworker.wire.messages import Sampling
from tests.engine.reference import VOCABULARY

GREEDY = Sampling(temperature=0.0)


class RunnerRow:
    """One row. `blocks` may be changed by the test between steps; the whole table is told in each plan."""

    def __init__(
        self,
        prompt: Sequence[int],
        blocks: Sequence[int],
        *,
        slot: int = 0,
        sampling: Sampling = GREEDY,
        stop_ids: Sequence[int] = (),
        computed: int = 0,
    ) -> None:
        self.key = SequenceKey("a", slot)
        self.blocks = list(blocks)
        self.ids = list(prompt)
        self.computed = computed  # positions whose KV the blocks hold already
        self._slot, self._sampling, self._stop_ids = slot, sampling, list(stop_ids)
        self._prompt_len = len(prompt)
        self._started = False

    @property
    def output(self) -> list[int]:
        return self.ids[self._prompt_len :]

    def plan(self, count: int | None = None, mask: bytes | None = None) -> StepPlan:
        """Its next `count` ids, all by default."""
        end = len(self.ids) if count is None else min(self.computed + count, len(self.ids))
        tokens, table = self.ids[self.computed : end], self.blocks[: blocks_for(end)]
        row = PlanRow(self.key, self._slot, self.computed, tokens, 0, table, end == len(self.ids))
        start = RowStart(
            self.key, self._slot, list(self.ids), self._prompt_len, self._sampling, self._stop_ids
        )
        starts = [] if self._started else [start]
        return StepPlan([row], starts, masks={} if mask is None else {self._slot: mask})

    def apply(self, row: PlanRow, sampled: Sampled) -> None:
        self._started = True
        self.computed += len(row.tokens)
        if row.sample:
            self.ids.append(sampled.token)

    def run(self, runner: ModelRunner, tokens: int, chunk: int | None = None) -> list[Sampled]:
        """Until it has `tokens` more of output."""
        results, goal = [], len(self.output) + tokens
        while len(self.output) < goal:
            results += run_together(runner, [self], chunk)
        return results


def run_together(runner: ModelRunner, rows: Sequence[RunnerRow], chunk: int | None = None) -> list[Sampled]:
    """One step of all of them."""
    plan = plans_join([row.plan(chunk) for row in rows])
    results = runner.run(plan)
    for row, planned, sampled in zip(rows, plan.rows, results, strict=True):
        row.apply(planned, sampled)
    return results


def plans_join(plans: Sequence[StepPlan]) -> StepPlan:
    return StepPlan(
        [row for plan in plans for row in plan.rows],
        [start for plan in plans for start in plan.starts],
        masks={slot: mask for plan in plans for slot, mask in plan.masks.items()},
    )


def ids_make(count: int, seed: int = 3) -> list[int]:
    return [(7 * position * position + seed * position + seed) % VOCABULARY for position in range(count)]
