"""All the time that steps take is charged to the flows in them, to the microsecond and by what they cost."""

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuworker.engine.engine import Engine
from gpuworker.engine.machine_time import time_divide
from gpuworker.engine.plan import Moves, Sampled, StepPlan
from gpuworker.engine.scripted_runner import ScriptedRunner
from policy.flow import Flow
from policy.pacing import StepPacer
from policy.step_cost import StepCost
from tests.engine.support import CACHE, EOS, ManualClock, key, submit_make, tokenizer_file

MAX_ROWS = 6
A, B = Flow("a", "interactive"), Flow("b", "interactive")
flows = st.builds(Flow, klass=st.sampled_from(["interactive", "batch"]), tenant=st.text(max_size=3))
costs = st.floats(0, 1e6, allow_subnormal=False)


@given(step_us=st.integers(0, 10**9), by_flow=st.dictionaries(flows, costs, min_size=1, max_size=40))
def test_the_parts_are_the_whole_and_follow_the_costs(step_us: int, by_flow: dict[Flow, float]) -> None:
    parts = time_divide(step_us, by_flow)
    assert [flow for flow, _ in parts] == list(by_flow)
    assert sum(us for _, us in parts) == step_us
    total = sum(by_flow.values())
    for flow, us in parts:
        assert us >= 0
        if total > 0:
            assert abs(us - step_us * by_flow[flow] / total) <= 1.01


def test_what_is_predicted_to_cost_nothing_is_shared_alike() -> None:
    assert time_divide(10, {A: 0.0, B: 0.0}) == [(A, 5), (B, 5)]


class SlowRunner(ScriptedRunner):
    """Takes a time of its own for everything."""

    def __init__(self, clock: ManualClock, seed: int, *, raises_for: int = -1) -> None:
        super().__init__()
        self._clock = clock
        self._random = random.Random(seed)
        self._raises_for = raises_for

    def move(self, moves: Moves) -> None:
        self._clock.ms += self._random.uniform(0.0, 3.0)
        super().move(moves)

    def run(self, plan: StepPlan) -> list[Sampled]:
        self._clock.ms += self._random.uniform(0.1, 60.0)
        if any(row.key.sid == self._raises_for for row in plan.rows):
            raise ValueError("a bad row")
        return super().run(plan)


def engine_make(runner: ScriptedRunner, *, blocks: int = 24, pacer: StepPacer | None = None) -> Engine:
    with TemporaryDirectory() as folder:
        return Engine(
            runner,
            tokenizer_file(Path(folder)),
            blocks=blocks,
            max_rows=MAX_ROWS,
            max_context_tokens=1024,
            pacer=pacer,
            eos_ids=frozenset({EOS}),
            cache=CACHE,
        )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), is_paced=st.booleans(), raises_for=st.integers(-1, 8))
def test_flows_are_charged_all_the_time_the_machine_was_busy(
    seed: int, is_paced: bool, raises_for: int
) -> None:
    # Given tenants that come at random times, a pool too small for them, and perhaps a row that always fails
    choose = random.Random(seed)
    clock = ManualClock()
    clock.ms = choose.uniform(0, 1e7)
    begun_us = round(clock.ms * 1000)
    runner = SlowRunner(clock, seed, raises_for=raises_for)
    engine = engine_make(runner, pacer=StepPacer(40) if is_paced else None)
    charged_us: Counter[Flow] = Counter()
    arrivals = sorted(choose.choices(range(60), k=12))
    sid, idle_us = 0, 0
    for step in range(400):
        while sid < len(arrivals) and arrivals[sid] <= step:
            submit = submit_make(
                sid,
                [choose.randrange(256) for _ in range(choose.randrange(1, 100))],
                max_tokens=choose.randrange(1, 40),
                tenant=choose.choice("abc"),
                klass=choose.choice(["interactive", "batch"]),
                ignore_eos=True,
            )
            engine.submit(key(sid), submit, clock())
            sid += 1
        if engine.has_work():
            for flow, us in engine.step(clock).work:
                charged_us[flow] += us
        # And time that passes between steps: it is the next one's, unless there is nothing to do
        before_us = round(clock.ms * 1000)
        clock.ms += choose.uniform(0, 50)
        idle_us += 0 if engine.has_work() else round(clock.ms * 1000) - before_us
    # Then what was not idle is what they were charged
    assert not engine.has_work()
    assert sum(charged_us.values()) == round(clock.ms * 1000) - begun_us - idle_us


class KnownCost(StepPacer):
    @property
    def cost(self) -> StepCost:
        return StepCost(base_ms=10, row_ms=1, token_ms=0.5, context_ms=0.0)


def test_a_step_is_charged_by_what_its_rows_are_predicted_to_cost() -> None:
    # Given one decoding row of a tenant, and a prompt of 20 tokens of another
    clock = ManualClock()

    class FixedRunner(ScriptedRunner):
        def run(self, plan: StepPlan) -> list[Sampled]:
            clock.ms += 44
            return super().run(plan)

    engine = engine_make(FixedRunner(), pacer=KnownCost(1000))
    engine.submit(key(1), submit_make(1, "x", max_tokens=9, tenant="a"), clock())
    engine.step(clock)
    engine.submit(key(2), submit_make(2, "y" * 20, max_tokens=9, tenant="b"), clock())
    # Then the step's 44 ms are theirs as 1 to 10, what is common to all of it included
    assert engine.step(clock).work == [(A, 4_000), (B, 40_000)]
    assert engine.step(clock).work == [(A, 22_000), (B, 22_000)]
    assert engine.stats().cost == StepCost(10, 1, 0.5, 0.0)
    assert engine.stats().row_limit == MAX_ROWS


def test_a_step_without_rows_is_charged_to_nobody() -> None:
    clock = ManualClock()
    engine = engine_make(ScriptedRunner())
    engine.submit(key(1), submit_make(1, "x"), clock())
    engine.cancel(key(1), "cancelled")
    assert engine.step(clock).work == []
    assert engine.stats().cost is None


def test_without_a_target_all_rows_may_decode() -> None:
    clock = ManualClock()
    engine = engine_make(ScriptedRunner())
    engine.submit(key(1), submit_make(1, "x"), clock())
    engine.step(clock)
    assert engine.stats().row_limit == MAX_ROWS
