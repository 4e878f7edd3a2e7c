"""What a step holds: decodes, chunks, admissions; and who gives way when blocks run out."""

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.plan import Sampled, SequenceKey
from tests.engine.scheduler_bench import Bench, counts
from tests.engine.support import key


def test_a_prompt_of_40_holds_three_blocks_until_it_ends() -> None:
    bench = Bench(blocks=10)
    bench.submit(1, 40, max_tokens=3)
    bench.step()
    assert bench.kv.pool.free_blocks == 7
    bench.step()
    bench.step()
    assert bench.kv.pool.free_blocks == 10
    assert [row.reason for row in bench.scheduler.take_finished()] == ["length"]


def test_decodes_come_first_and_the_prompt_shares_what_is_left() -> None:
    # Given four decoding rows and a budget of 64
    bench = Bench(blocks=100)
    for sid in range(4):
        bench.submit(sid, 4)
    bench.step()
    # When a prompt of 200 arrives
    bench.submit(9, 200)
    # Then every step holds the four decodes and at most 60 tokens of it, and it samples only at its end
    for expected in (60, 60, 60, 20):
        plan = bench.step()
        assert counts(plan) == {0: 1, 1: 1, 2: 1, 3: 1, 9: expected}
        assert [row.sample for row in plan.rows] == [True] * 4 + [expected == 20]
    assert counts(bench.step())[9] == 1


def test_prompts_waiting_together_share_a_step_in_order_of_arrival() -> None:
    bench = Bench(blocks=100)
    for sid in range(3):
        bench.submit(sid, 30)
    assert counts(bench.step()) == {0: 30, 1: 30, 2: 4}


def test_rows_over_the_limit_wait() -> None:
    bench = Bench(blocks=100, max_rows=2)
    for sid in range(3):
        bench.submit(sid, 4, max_tokens=2)
    assert counts(bench.step()).keys() == {0, 1}
    assert bench.scheduler.waiting == 1
    bench.step()
    assert counts(bench.step()).keys() == {2}


def test_a_newcomer_leaves_room_for_running_rows_to_grow() -> None:
    # Given one running row and 3 of 5 blocks free
    bench = Bench(blocks=5)
    bench.submit(1, 2 * BLOCK_SIZE, max_tokens=2)
    bench.step()
    # When a prompt of two blocks arrives, the watermark of two keeps it out; alone it runs
    bench.submit(2, 2 * BLOCK_SIZE)
    assert counts(bench.step()).keys() == {1}
    assert counts(bench.step()).keys() == {2}


def test_the_newest_row_gives_way_and_loses_nothing() -> None:
    # Given three rows that fill the pool as they grow
    bench = Bench(blocks=9)
    rows = [bench.submit(sid, 20, max_tokens=60) for sid in range(3)]
    preempted: list[int] = []
    for _ in range(300):
        if not bench.scheduler.has_work():
            break
        before = [row.preemptions for row in rows]
        bench.step()
        preempted += [row.key.sid for row, count in zip(rows, before, strict=True) if row.preemptions > count]
        bench.scheduler.take_finished()
    # Then the newest was the first victim, the oldest never was one, and every row has its own text
    assert preempted
    assert preempted[0] == 2
    assert 0 not in preempted
    for sid in range(3):
        assert bench.outputs[sid] == [1000 * sid + index % 20 for index in range(60)]


def test_a_preempted_row_is_first_in_line_and_returns_only_whole() -> None:
    # Given an old row that will fill the pool, and a young one that had to give way
    bench = Bench(blocks=4)
    bench.submit(1, 16, max_tokens=48)
    young = bench.submit(2, 16, max_tokens=40)
    bench.step()
    bench.submit(3, 20, max_tokens=1)
    seen = [counts(bench.step()).keys() for _ in range(17)]
    assert seen[-2:] == [{1, 2}, {1}]
    assert young.preemptions == 1
    # Then it returns before the third, which was there already, and only when all of it fits
    assert [counts(bench.step()).keys() for _ in range(30)] == [{1}] * 30
    assert counts(bench.step()) == {2: 33}


def test_a_lone_row_may_fill_the_pool() -> None:
    bench = Bench(blocks=3)
    bench.submit(1, 40, max_tokens=8)
    for _ in range(8):
        bench.step()
    assert not bench.scheduler.running
    assert len(bench.outputs[1]) == 8
    assert bench.scheduler.preemptions == 0


def test_cancelled_while_waiting_is_never_scheduled() -> None:
    bench = Bench(blocks=10)
    bench.submit(1, 10)
    bench.scheduler.cancel(SequenceKey(*key(1)), "cancelled")
    assert bench.step().rows == []
    assert [row.reason for row in bench.scheduler.take_finished()] == ["cancelled"]


def test_cancelled_while_running_is_absent_from_the_next_plan_and_its_blocks_are_back() -> None:
    bench = Bench(blocks=10)
    bench.submit(1, 10)
    bench.submit(2, 10)
    bench.step()
    bench.scheduler.cancel(SequenceKey(*key(1)), "cancelled")
    bench.scheduler.cancel(SequenceKey(*key(1)), "deadline")
    bench.scheduler.cancel(SequenceKey(*key(77)), "cancelled")
    assert bench.kv.pool.free_blocks == 9
    assert counts(bench.step()) == {2: 1}
    assert [(row.key.sid, row.reason) for row in bench.scheduler.take_finished()] == [(1, "cancelled")]


def test_cancelled_in_flight_keeps_its_blocks_until_the_step_is_applied() -> None:
    bench = Bench(blocks=10)
    bench.submit(1, 10)
    plan = bench.scheduler.schedule(0)
    bench.scheduler.cancel(SequenceKey(*key(1)), "cancelled")
    assert bench.kv.pool.free_blocks == 9
    assert bench.scheduler.take_finished() == []
    bench.finish(plan, [Sampled(5)])
    assert bench.kv.pool.free_blocks == 10
    assert bench.outputs == {}


def test_cancelled_between_two_chunks_of_its_prompt_gives_no_output() -> None:
    bench = Bench(blocks=20)
    bench.submit(1, 100)
    assert counts(bench.step()) == {1: 64}
    bench.scheduler.cancel(SequenceKey(*key(1)), "cancelled")
    assert bench.step().rows == []
    assert bench.outputs == {}
    assert bench.kv.pool.free_blocks == 20
