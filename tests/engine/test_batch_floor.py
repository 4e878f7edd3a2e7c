"""Batch has its part of machine time inside the engine's step, whatever the interactive tenants ask for.

In predicted time, by which the clock moves; the costs are given.
"""

import random
from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpuworker.engine.plan import Sampled, SequenceKey, StepPlan, StepResult
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.engine.sequence import Sequence
from policy.flow import BATCH, INTERACTIVE, Flow
from policy.pacing import IDLE_FACTOR, StepPacer
from policy.step_cost import StepCost
from tests.engine.scheduler_bench import Bench

PART = 0.095
WINDOW_MS = 30_000.0
MIN_TOKENS = 16


class KnownPacer(StepPacer):
    def __init__(self, cost: StepCost, target_ms: float) -> None:
        super().__init__(target_ms, min_tokens=MIN_TOKENS)
        self._known = cost

    @property
    def cost(self) -> StepCost:
        return self._known

    def allowed_ms(self) -> float:
        return 0.9 * self.target_ms

    def idle_ms(self) -> float:
        return (IDLE_FACTOR - 0.1) * self.target_ms


class Asker(NamedTuple):
    """A tenant that always has so many requests, each up to so long."""

    rows: int
    prompt_tokens: int
    output_tokens: int
    weight: float


class Machine(Bench):
    def __init__(self, pacer: KnownPacer, askers: Mapping[Flow, Asker], seed: int) -> None:
        super().__init__(blocks=8000, max_rows=48, max_step_tokens=512, pacer=pacer)
        self.pacer, self.askers = pacer, askers
        self.choose = random.Random(seed)
        self.echo = ScriptedRunner()
        self.open = dict.fromkeys(askers, 0)
        self.longest_ms = 0.0  # of a step
        self.times: list[tuple[float, float]] = [(0.0, 0.0)]  # the end of each step, batch's time until then
        self._sid = 0

    def ask(self) -> None:
        for flow, asker in self.askers.items():
            while self.open[flow] < asker.rows:
                self._sid += 1
                self.open[flow] += 1
                prompt = self.choose.randint(1, asker.prompt_tokens)
                output = self.choose.randint(1, asker.output_tokens)
                self.submit(
                    self._sid, prompt, output, tenant=flow.tenant, klass=flow.klass, weight=asker.weight
                )

    def run(self, until_ms: float) -> None:
        while self.now_ms < until_ms:
            self.ask()
            decoding = {row.key for row in self.scheduler.sequences if row.slot >= 0 and row.remaining == 1}
            plan = self.scheduler.schedule(self.now_ms)
            costs = self.scheduler.costs
            step_ms = self.pacer.cost.base_ms + sum(costs.values())
            self.check(plan, decoding, step_ms)
            batch_ms = sum(ms for flow, ms in costs.items() if flow.klass == BATCH)
            self.longest_ms = max(self.longest_ms, step_ms)
            self.now_ms += step_ms
            self.times.append((self.now_ms, self.times[-1][1] + step_ms * batch_ms / sum(costs.values())))
            sampled = dict(zip((row.key for row in plan.rows), self.echo.run(plan), strict=True))
            self.scheduler.apply(plan, StepResult(sampled, {}), self.now_ms, self)
            for row in self.scheduler.take_finished():
                self.open[row.flow] -= 1

    def check(self, plan: StepPlan, decoding: set[SequenceKey], step_ms: float) -> None:
        """Prompts never make a step longer than it may be."""
        prompt_tokens = sum(len(row.tokens) for row in plan.rows if row.key not in decoding)
        if prompt_tokens > MIN_TOKENS:
            over = self.scheduler._batch.shares.over
            all_yield = all(self.scheduler.sequence(key).flow in over for key in decoding)
            assert step_ms <= (self.pacer.idle_ms() if all_yield else self.pacer.allowed_ms()) + 1e-6

    def least_part(self) -> float:
        """Of batch, in any window."""
        least, first = 1.0, 0
        for end_ms, had_ms in self.times:
            while end_ms - self.times[first + 1][0] >= WINDOW_MS:
                first += 1
            begin_ms, before_ms = self.times[first]
            if end_ms - begin_ms >= WINDOW_MS:
                least = min(least, (had_ms - before_ms) / (end_ms - begin_ms))
        return least

    def token(self, sequence: Sequence, sampled: Sampled) -> str:
        return ""


COSTS = st.builds(
    lambda base, row, token, target: (StepCost(base, row, token, 0.001), target),
    st.sampled_from([4.0, 10.0, 20.0]),
    st.sampled_from([0.2, 1.0, 3.0]),
    st.sampled_from([0.05, 0.4]),
    st.sampled_from([40.0, 100.0]),
)
ASKERS = st.builds(
    Asker,
    st.sampled_from([1, 6, 40]),
    st.sampled_from([8, 200, 1500]),
    st.sampled_from([1, 20, 400]),
    st.sampled_from([1.0, 3.0]),
)
BATCH_ASKERS = st.builds(
    Asker,
    st.sampled_from([20, 40]),
    st.sampled_from([8, 200, 1500]),
    st.sampled_from([1, 20, 400]),
    st.just(1.0),
)


# Shorter histories of this kind say no more, and take minutes to find.
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    costs=COSTS,
    interactive=st.lists(ASKERS, min_size=1, max_size=4),
    batch=st.lists(BATCH_ASKERS, min_size=1, max_size=2),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_batch_has_its_part_of_any_window_and_no_step_is_longer_for_it(
    costs: tuple[StepCost, float],
    interactive: list[Asker],
    batch: list[Asker],
    seed: int,
    data: st.DataObject,
) -> None:
    askers = {Flow(f"tenant {at}", INTERACTIVE): asker for at, asker in enumerate(interactive)}
    over = data.draw(st.sets(st.sampled_from(sorted(askers))))
    askers |= {Flow(f"tenant {at}", BATCH): asker for at, asker in enumerate(batch)}
    machine = Machine(KnownPacer(*costs), askers, seed)
    machine.scheduler.yield_also(frozenset(over))
    machine.run(1.5 * WINDOW_MS)
    assert machine.least_part() >= PART


def test_decodes_that_fill_a_step_make_room_for_batch_and_the_step_is_no_longer() -> None:
    # Given more tenants with one row each than the target allows, all of them within their share
    cost, tenants = StepCost(8.0, 3.0, 0.65, 0.0), 40
    chats = {Flow(f"tenant {at}", INTERACTIVE): Asker(1, 16, 5000, 1.0) for at in range(tenants)}
    machine = Machine(KnownPacer(cost, 100.0), chats, 3)
    machine.run(20_000)
    alone_ms, machine.longest_ms = machine.longest_ms, 0.0
    # When batch comes
    machine.askers = {**chats, Flow("tenant", BATCH): Asker(20, 200, 200, 1.0)}
    machine.open[Flow("tenant", BATCH)] = 0
    begun = len(machine.times)
    machine.run(60_000)
    # Then it has its part, and some of the decodes wait for a step now and then
    machine.times = machine.times[begun:]
    assert machine.least_part() >= PART
    assert alone_ms >= 120
    overdue_ms = 2 * cost.row_ms + MIN_TOKENS * cost.token_ms
    assert machine.longest_ms <= cost.base_ms + tenants * cost.row_ms + overdue_ms
