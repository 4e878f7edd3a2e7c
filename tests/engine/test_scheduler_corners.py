"""Corners of the scheduler where a row would be lost, charged twice, or waited for without end."""

import pytest

from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.preemption import Recovery
from policy.flow import Flow
from policy.pacing import StepPacer
from policy.step_cost import StepCost
from tests.engine.scheduler_bench import Bench, counts
from tests.engine.support import key


class KnownPacer(StepPacer):
    """Costs and time are given, not learnt."""

    def __init__(self, cost: StepCost, allowed_ms: float) -> None:
        super().__init__(target_ms=allowed_ms)
        self._known = cost
        self._allowed_ms = allowed_ms

    @property
    def cost(self) -> StepCost:
        return self._known

    @cost.setter
    def cost(self, cost: StepCost) -> None:
        self._known = cost

    def allowed_ms(self) -> float:
        return self._allowed_ms

    def idle_ms(self) -> float:
        return self._allowed_ms


def test_a_row_that_takes_a_slot_computes_in_the_same_step() -> None:
    # Given a long cached prompt, whose next token costs more than the first of a new prompt
    cost = StepCost(base_ms=0.0, row_ms=1.0, token_ms=1.0, context_ms=0.0, pair_ms=0.01)
    bench = Bench(blocks=100, prefix_cache=True, pacer=KnownPacer(cost, allowed_ms=24.0))
    cached = list(range(600))
    bench.submit(1, cached, max_tokens=1)
    bench.run_to_the_end()
    # When it is asked for again in a step that has room for the one, but not for the other
    bench.submit(2, 20, max_tokens=5)
    bench.submit(3, cached, max_tokens=5)
    plan = bench.step()
    assert {start.key for start in plan.starts} <= {row.key for row in plan.rows}
    bench.run_to_the_end()
    assert bench.outputs[3] == cached[:5]


def test_held_choices_that_share_blocks_leave_for_a_row_that_needs_them() -> None:
    # Given two held choices; only when both leave is their prompt's room free
    bench = Bench(blocks=10, max_step_tokens=256)
    first = bench.submit(1, 100, max_tokens=10)
    second = bench.submit(1, 100, max_tokens=10, parent=first, choice=1)
    bench.step()
    bench.step()
    for row in (first, second):
        bench.scheduler.hold(row.key, True)
    # When another needs most of the pool
    bench.submit(2, 120, max_tokens=4)
    # Then it is served
    assert counts(bench.step()) == {2: 120}
    while bench.scheduler.has_work():
        bench.step()
        bench.scheduler.take_finished()
    assert len(bench.outputs[2]) == 4
    for row in (first, second):
        bench.scheduler.hold(row.key, False)
    bench.run_to_the_end()
    assert [len(ids) for ids in bench.choices.values()] == [10, 10, 4]


def test_no_step_is_empty_while_there_is_work() -> None:
    # Given a machine that is slower than the target whatever the step, and a row that only waits
    cost = StepCost(base_ms=50.0, row_ms=1.0, token_ms=1.0, context_ms=0.0)
    bench = Bench(blocks=100, pacer=KnownPacer(cost, allowed_ms=24.0))
    bench.submit(1, 20, tenant="a").waits_for_grammar = True
    bench.submit(2, 40, max_tokens=3, tenant="b", klass="batch")
    # Then another's prompt goes on without it
    assert bench.scheduler.has_work()
    assert counts(bench.step()) == {2: 16}


def test_a_flow_has_nobody_to_yield_to_while_all_others_are_held() -> None:
    # Given room for a few decodes a step, one tenant with more, and another whose only row is held
    pacer = KnownPacer(StepCost(0.0, row_ms=4.0, token_ms=0.1, context_ms=0.0), allowed_ms=24.0)
    bench = Bench(blocks=200, max_rows=16, pacer=pacer)
    bench.submit(1, 16, tenant="held")
    bench.scheduler.hold(SequenceKey(*key(1)), True)
    for sid in range(2, 12):
        bench.submit(sid, 4, tenant="busy")
    for _ in range(20):
        bench.step()
    # When decodes become dearer than the target allows
    pacer.cost = StepCost(0.0, row_ms=8.0, token_ms=0.1, context_ms=0.0)
    # Then none of them is paused, as there is nobody to pause them for
    assert bench.scheduler.running > 3
    assert len(bench.step().rows) == bench.scheduler.running


def test_what_was_charged_once_is_not_charged_when_it_is_computed_again() -> None:
    # Given two rows of two tenants, one of which gives way after many tokens
    bench = Bench(blocks=8)
    bench.submit(1, 30, max_tokens=70, tenant="a")
    young = bench.submit(2, 20, max_tokens=60, tenant="b", weight=0.5)
    while not young.preemptions:
        bench.step()
    flows = bench.scheduler._flows
    served_us = flows.time(young.flow)
    length = len(young.token_ids)
    # When it comes back and computes all it had again
    while young.num_computed < length - 1:
        bench.step()
    # Then nothing of that is charged, save the one token that was never computed
    assert young.preemptions == 1
    assert length > 36
    assert flows.time(young.flow) - served_us <= 2 * 2000


def test_a_new_weight_counts_at_once() -> None:
    # Given a tenant that is never idle, and is given four times the weight
    bench = Bench(blocks=100)
    bench.submit(1, 20, tenant="a")
    row = bench.submit(2, 20, tenant="a", weight=4.0)
    flows = bench.scheduler._flows
    before_us = flows.time(row.flow)
    # When machine time is charged, then by the new weight
    flows.charge(row.flow, 8.0)
    assert flows.time(row.flow) - before_us == 2000


def test_a_flow_beyond_its_share_does_not_yield_for_ever() -> None:
    # Given a tenant with more rows than its share, and one within it whose rows always fill the pool
    bench = Bench(blocks=20, max_rows=8, max_step_tokens=64)
    much, little = (Flow(tenant, "interactive") for tenant in ("much", "little"))
    for sid in range(1, 11):
        bench.submit(sid, 60, max_tokens=20, tenant="much")
    ahead_us, sid = [], 100
    for _ in range(1000):
        while sum(row.flow == little for row in bench.scheduler.sequences) < 3:
            sid += 1
            bench.submit(sid, 100, max_tokens=40, tenant="little")
        bench.step()
        if much in bench.scheduler._flows:
            ahead_us.append(bench.scheduler._flows.time(little) - bench.scheduler._flows.time(much))
    # Then the other gets ahead by as much as it may, and then waits
    assert 1_000_000 < max(ahead_us) < 2_000_000
    assert all(len(bench.outputs[own]) == 20 for own in range(1, 11))


def test_batch_comes_after_interactive_flows_beyond_their_share() -> None:
    # Given slots for two, a tenant that keeps one, another beyond its share, and batch, served least of all
    bench = Bench(blocks=400, max_rows=2, max_step_tokens=64)
    bench.submit(1, 20, max_tokens=400, tenant="a")
    for sid in range(10, 14):
        bench.submit(sid, 20, max_tokens=10, tenant="b")
    for _ in range(3):
        bench.step()
    for sid in range(20, 24):
        bench.submit(sid, 20, max_tokens=10, tenant="c", klass="batch")
    # Then all of the other's rows run before any of batch
    while not any(sid in bench.outputs for sid in range(20, 24)):
        bench.step()
        assert bench.now_ms == 0
    assert all(len(bench.outputs.get(sid, [])) == 10 for sid in range(10, 14))


def test_a_prompt_as_large_as_the_pool_does_not_wait_for_rows_that_yield_to_it() -> None:
    bench = Bench(blocks=20, max_rows=16, max_step_tokens=400)
    for sid in range(1, 13):
        bench.submit(sid, 8, max_tokens=250, tenant="much")
    bench.step()
    bench.submit(100, 300, max_tokens=5, tenant="little")
    assert counts(bench.step())[100] == 300


def test_attention_counts_when_computing_again_is_compared_with_a_swap() -> None:
    # Given a model for which long prompts are dear for their attention alone
    recovery = Recovery(lambda: StepCost(base_ms=1, row_ms=1, token_ms=0.01, context_ms=0, pair_ms=0.001))
    assert not recovery.prefers_swap(computed_tokens=32)
    assert recovery.prefers_swap(computed_tokens=1600)


def test_deadlines_of_rows_that_ended_are_forgotten() -> None:
    # Given one row that lives long, and many that end long before their deadline
    bench = Bench(blocks=80)
    bench.submit(1, 8, max_tokens=1000)
    for sid in range(2, 1000):
        bench.submit(sid, 8, max_tokens=1)
        bench.step()
        bench.scheduler.take_finished()
    assert len(bench.scheduler._deadlines._heap) < 100


def test_a_key_that_comes_again_has_the_deadline_of_the_later_request() -> None:
    bench = Bench(blocks=20)
    bench.submit(1, 8, max_tokens=1)
    bench.run_to_the_end()
    first_ms, bench.now_ms = bench.now_ms + 600_000, 1000.0
    again = bench.submit(1, 8, max_tokens=100)
    assert bench.scheduler.next_deadline_ms == again.deadline_ms == first_ms + 1000


def test_batch_gives_way_before_interactive_rows_that_were_served_more() -> None:
    # Given batch, which had the least, and a tenant beyond its share
    bench = Bench(blocks=20, max_rows=8, max_step_tokens=256)
    batch = bench.submit(10, 20, max_tokens=60, tenant="c", klass="batch")
    bench.step()
    served = [bench.submit(sid, 20, max_tokens=60, tenant="b") for sid in range(2, 7)]
    assert len(bench.step().rows) == 6
    # When another tenant needs room
    bench.submit(20, 70, max_tokens=5, tenant="d")
    assert counts(bench.step())[20] == 70
    # Then batch gives way
    assert [row.preemptions for row in (*served, batch)] == [0, 0, 0, 0, 0, 1]


def test_a_row_that_the_step_holds_does_not_give_way_to_a_later_one() -> None:
    # Given two tenants of equal standing whose rows grow in the same step, with one block left for both
    bench = Bench(blocks=7)
    first = bench.submit(1, 32, max_tokens=60, tenant="a")
    second = bench.submit(2, 32, max_tokens=60, tenant="b")
    while bench.kv.pool.free_blocks != 1 or first.num_computed % 16 or second.num_computed % 16:
        bench.step()
    # When the first takes it, and has had more by that
    plan = bench.step()
    # Then the second gives way, not the first
    assert counts(plan) == {1: 1}
    assert (first.preemptions, second.preemptions) == (0, 1)
    bench.run_to_the_end()
    for sid in (1, 2):
        assert bench.outputs[sid] == [1000 * sid + index % 32 for index in range(60)]


@pytest.mark.parametrize("klass", ["batch", "interactive"])
def test_a_prompt_that_needs_most_of_the_pool_is_not_overtaken_for_ever(klass: str) -> None:
    # Given a tenant that wants rows of 12 of 16 blocks, and two that send small ones without end
    bench = Bench(blocks=16, max_rows=8)
    large = [bench.submit(sid, 180, max_tokens=10, tenant="large", klass=klass) for sid in range(1, 7)]
    sid = 100
    for _ in range(6000):
        while bench.scheduler.running + bench.scheduler.waiting < 4 + sum(not row.reason for row in large):
            sid += 1
            bench.submit(sid, 20, max_tokens=20, tenant=f"small {sid % 2}")
        bench.step()
        bench.scheduler.take_finished()
        if all(row.reason for row in large):
            break
    # Then it gets what it asked for
    assert [row.reason for row in large] == ["length"] * 6
