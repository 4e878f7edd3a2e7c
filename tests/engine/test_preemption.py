"""Rows that give way and come back: by computing again, by host memory; and rows that are held."""

import pytest

from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.preemption import Recovery, RecoveryMode
from policy.pacing import StepCost
from tests.engine.scheduler_bench import Bench, counts
from tests.engine.support import key


def echo(sid: int, prompt_len: int, count: int) -> list[int]:
    return [1000 * sid + index % prompt_len for index in range(count)]


@pytest.mark.parametrize("recovery", ["recompute", "swap"])
def test_preempted_rows_lose_nothing_either_way(recovery: RecoveryMode) -> None:
    # Given more rows than the pool holds as they grow
    bench = Bench(blocks=9, host_blocks=20, recovery=recovery)
    for sid in range(5):
        bench.submit(sid, 20, max_tokens=60)
    # When they run
    bench.run_to_the_end()
    # Then some gave way, and every row has its own text
    assert bench.scheduler.preemptions > 0
    assert bench.scheduler.swaps == (bench.scheduler.preemptions if recovery == "swap" else 0)
    for sid in range(5):
        assert bench.outputs[sid] == echo(sid, 20, 60)
    assert bench.kv.pool.free_blocks == 9
    assert bench.kv.host is not None
    assert bench.kv.host.free_blocks == 20


def test_a_row_swapped_out_goes_on_where_it_was() -> None:
    bench = Bench(blocks=4, host_blocks=4, recovery="swap")
    bench.submit(1, 16, max_tokens=48)
    young = bench.submit(2, 16, max_tokens=40)
    plans = bench.run_to_the_end()
    # Then it computed its prompt once, and after its return one token as in any other step
    assert young.preemptions == 1
    assert sum(counts(plan).get(2, 0) for plan in plans) == 16 + 39
    assert bench.outputs[2] == echo(2, 16, 40)


def test_a_full_host_memory_falls_back_to_computing_again() -> None:
    bench = Bench(blocks=6, host_blocks=1, recovery="swap")
    bench.submit(1, 20, max_tokens=60)
    bench.submit(2, 20, max_tokens=50)
    bench.run_to_the_end()
    assert bench.scheduler.preemptions > 0
    assert bench.scheduler.swaps == 0
    assert bench.outputs == {1: echo(1, 20, 60), 2: echo(2, 20, 50)}


def test_a_row_swapped_out_in_the_middle_of_its_prompt_continues_it() -> None:
    # Given a long prompt, computed in part when an older row needs its blocks
    bench = Bench(blocks=9, host_blocks=9, recovery="swap", max_step_tokens=17)
    bench.submit(1, 30, max_tokens=60)
    while bench.outputs == {}:
        bench.step()
    long = bench.submit(2, 70, max_tokens=5)
    bench.step()
    long_start = long.num_computed
    bench.scheduler.hold(long.key, True)
    bench.submit(3, 60, max_tokens=5)
    bench.step()
    # Then it comes back with what it had
    assert 0 < long_start < 70
    assert long.num_computed == long_start
    assert len(long.host_blocks) == 1
    bench.scheduler.hold(long.key, False)
    plans = bench.run_to_the_end()
    assert sum(counts(plan).get(2, 0) for plan in plans) == 70 - long_start + 4
    assert bench.outputs == {1: echo(1, 30, 60), 2: echo(2, 70, 5), 3: echo(3, 60, 5)}


@pytest.mark.parametrize(
    ("block_ms", "swaps"),
    [pytest.param(0.1, True, id="fast link"), pytest.param(50.0, False, id="slow link")],
)
def test_the_cheaper_way_back_is_taken(block_ms: float, swaps: bool) -> None:
    recovery = Recovery(lambda: StepCost(base_ms=1, row_ms=1, token_ms=0.5, context_ms=0))
    for _ in range(60):
        recovery.observe(4, 4 * block_ms)
    assert recovery.prefers_swap(computed_tokens=160) is swaps


def test_a_held_row_keeps_its_kv_and_computes_nothing() -> None:
    bench = Bench(blocks=10)
    bench.submit(1, 20, max_tokens=10)
    bench.submit(2, 20, max_tokens=10)
    bench.step()
    bench.scheduler.hold(SequenceKey(*key(1)), True)
    assert [counts(bench.step()) for _ in range(3)] == [{2: 1}] * 3
    assert bench.scheduler.running == 2
    # Then only it is left, and there is nothing to do until it is released
    while bench.scheduler.has_work():
        bench.step()
        bench.scheduler.take_finished()
    assert len(bench.outputs[1]) == 1
    bench.scheduler.hold(SequenceKey(*key(1)), False)
    bench.run_to_the_end()
    assert bench.outputs == {1: echo(1, 20, 10), 2: echo(2, 20, 10)}


@pytest.mark.parametrize("recovery", ["recompute", "swap"])
def test_a_held_row_leaves_the_device_for_whoever_needs_it(recovery: RecoveryMode) -> None:
    # Given a held row that fills most of the pool
    bench = Bench(blocks=8, host_blocks=8, recovery=recovery, max_step_tokens=256)
    held = bench.submit(1, 90, max_tokens=10)
    bench.step()
    bench.scheduler.hold(held.key, True)
    # When another needs the room
    bench.submit(2, 80, max_tokens=10)
    assert counts(bench.step()) == {2: 80}
    assert held.block_table == []
    assert bool(held.host_blocks) == (recovery == "swap")
    # Then it does not come back before it is released, and then it is whole
    while bench.scheduler.has_work():
        bench.step()
        bench.scheduler.take_finished()
    assert bench.scheduler.waiting == 1
    bench.scheduler.hold(held.key, False)
    bench.run_to_the_end()
    assert bench.outputs == {1: echo(1, 90, 10), 2: echo(2, 80, 10)}


def test_a_held_row_still_meets_its_deadline() -> None:
    bench = Bench(blocks=10)
    held = bench.submit(1, 20)
    bench.step()
    bench.scheduler.hold(held.key, True)
    assert not bench.scheduler.has_work()
    assert bench.scheduler.next_deadline_ms == held.deadline_ms
    bench.now_ms = held.deadline_ms
    assert bench.step().rows == []
    assert [row.reason for row in bench.scheduler.take_finished()] == ["deadline"]
    assert bench.kv.pool.free_blocks == 10


def test_the_victim_is_the_newest_row_of_the_most_over_served_tenant() -> None:
    # Given a tenant that was served much, and another whose row is the newest of all
    bench = Bench(blocks=12)
    served = [bench.submit(sid, 30, max_tokens=100, tenant="much") for sid in (1, 2)]
    bench.step()
    newest = bench.submit(3, 20, max_tokens=60, tenant="little")
    # When blocks run out
    while not any(row.preemptions for row in (*served, newest)):
        bench.step()
    # Then its newest row gives way
    assert [row.preemptions for row in (*served, newest)] == [0, 1, 0]
    bench.run_to_the_end()
    assert bench.outputs == {1: echo(1, 30, 100), 2: echo(2, 30, 100), 3: echo(3, 20, 60)}
