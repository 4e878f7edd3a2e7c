"""A flow that is over its share in the whole fleet yields here too, by the rules for one that is so here."""

from itertools import count

import pytest

from gpuworker.engine.budget import PAUSE_MS
from gpuworker.engine.flows import MAX_BEHIND_US
from gpuworker.engine.plan import StepPlan
from policy.flow import Flow
from tests.engine.test_fair_steps import TARGET_MS, TimedBench

MUCH = Flow("much", "interactive")


class Crowd(TimedBench):
    """Two rows meet the target; `much` has one, which never ends: no more than its share here. Beside it
    come prompts, one after the other, each of another tenant."""

    def __init__(self) -> None:
        super().__init__(row_ms=10.0)
        self.learn()
        self.submit(1, 16, max_tokens=4000, tenant="much")
        self._sids = count(1000)
        self._newest = 0
        while 1 not in self.outputs:
            self.step()

    def run(self, steps: int) -> list[StepPlan]:
        return [self._next() for _ in range(steps)]

    def _next(self) -> StepPlan:
        if not self._newest or self._newest in self.outputs:
            self._newest = next(self._sids)
            self.submit(self._newest, 60, max_tokens=1, tenant=f"quiet {self._newest}")
        plan = self.step()
        self.scheduler.take_finished()
        return plan


def left_out(plans: list[StepPlan], sid: int = 1) -> int:
    return sum(sid not in {row.key.sid for row in plan.rows} for plan in plans)


def test_its_decodes_wait_for_the_prompts_of_others_until_the_word_is_taken_back() -> None:
    crowd = Crowd()
    assert left_out(crowd.run(40)) == 0
    crowd.scheduler.yield_also(frozenset({MUCH}))
    assert left_out(crowd.run(20)) > 10
    crowd.scheduler.yield_also(frozenset())
    assert left_out(crowd.run(40)) == 0


def test_a_pause_ends_as_any_other() -> None:
    crowd = Crowd()
    crowd.scheduler.yield_also(frozenset({MUCH}))
    last_ms, longest_ms = crowd.now_ms, 0.0
    for _ in range(400):
        (plan,) = crowd.run(1)
        if left_out([plan]) == 0:
            longest_ms = max(longest_ms, crowd.now_ms - last_ms)
            last_ms = crowd.now_ms
    assert TARGET_MS < longest_ms <= PAUSE_MS + 2 * TARGET_MS


def test_who_has_yielded_too_long_has_its_turn_all_the_same() -> None:
    # Given another tenant within its share, which decodes and always has a prompt to compute
    bench = TimedBench()
    bench.learn()
    bench.submit(1, 16, max_tokens=4000, tenant="much")
    for sid in range(10, 14):
        bench.submit(sid, 16, max_tokens=4000, tenant="other")
    for _ in range(5):
        bench.step()
    bench.scheduler.yield_also(frozenset({MUCH}))
    bench.submit(20, 3000, max_tokens=1, tenant="other")
    assert left_out([bench.step() for _ in range(10)]) > 5
    # Then, once the other had so much more, the pauses end
    flows, other = bench.scheduler._flows, Flow("other", "interactive")
    while flows.time(other) - flows.time(MUCH) <= MAX_BEHIND_US:
        bench.step()
    plans = [bench.step() for _ in range(10)]
    assert 20 not in bench.outputs
    assert left_out(plans) == 0


def test_a_lone_flow_yields_to_nobody() -> None:
    # Given a tenant alone, whose decodes last longer than the target
    bench = TimedBench(row_ms=5.0)
    bench.learn()
    for sid in (1, 2, 3):
        bench.submit(sid, 16, max_tokens=4000, tenant="much")
    for _ in range(5):
        bench.step()
    bench.row_ms = 20.0
    bench.scheduler.yield_also(frozenset({MUCH}))
    # Then none of them is left out: that would only cost it time
    assert all(len(bench.step().rows) == 3 for _ in range(40))


def test_batch_yields_to_it_as_to_others() -> None:
    bench = TimedBench(row_ms=10.0)
    bench.learn()
    bench.scheduler.yield_also(frozenset({MUCH}))
    for sid in (1, 2):
        bench.submit(sid, 16, max_tokens=4000, tenant="much")
    bench.step()
    bench.submit(3, 400, max_tokens=5, tenant="other", klass="batch")
    plans = [bench.step() for _ in range(20)]
    assert left_out(plans, 1) + left_out(plans, 2) == 0


@pytest.mark.parametrize("is_over", [False, True])
def test_among_batch_alone_it_holds_as_well(is_over: bool) -> None:
    much = Flow("much", "batch")
    bench = TimedBench(row_ms=10.0)
    bench.learn()
    bench.submit(1, 16, max_tokens=4000, tenant="much", klass="batch")
    while 1 not in bench.outputs:
        bench.step()
    bench.scheduler.yield_also(frozenset({much} if is_over else ()))
    bench.submit(2, 60, max_tokens=1, tenant="other", klass="batch")
    assert (left_out([bench.step() for _ in range(2)]) > 0) == is_over


def test_of_flows_without_rows_here_it_changes_nothing() -> None:
    told, untold = Crowd(), Crowd()
    told.scheduler.yield_also(frozenset({Flow("elsewhere", "interactive"), Flow("much", "batch")}))
    assert told.run(100) == untold.run(100)
