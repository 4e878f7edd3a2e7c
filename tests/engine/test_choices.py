"""n > 1: choices that share the KV of their prompt, and never write into what another reads."""

import pytest

from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.sequence import Sequence
from tests.engine.scheduler_bench import Bench, counts


def submit_choices(bench: Bench, sid: int, prompt_len: int, n: int, max_tokens: int = 20) -> list[Sequence]:
    first = bench.submit(sid, prompt_len, max_tokens)
    others = [bench.submit(sid, prompt_len, max_tokens, parent=first, choice=at) for at in range(1, n)]
    return [first, *others]


@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 31, 32, 40])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_share_the_prompt_and_each_has_its_own_text(prompt_len: int, prefix_cache: bool) -> None:
    # Given three choices of one prompt
    bench = Bench(blocks=20, prefix_cache=prefix_cache)
    rows = submit_choices(bench, 1, prompt_len, 3)
    # When the prompt is computed, it is computed once, and the others begin in the next step
    assert [row.key.choice for row in bench.step().rows] == [0]
    plan = bench.step()
    assert sorted(row.key.choice for row in plan.rows) == [0, 1, 2]
    assert [len(row.tokens) for row in plan.rows] == [1, 1, 1]
    # Then they share all full blocks before the one they write to
    shared = (prompt_len - 1) // 16
    for row in rows[1:]:
        assert row.block_table[:shared] == rows[0].block_table[:shared]
        assert row.block_table[shared] != rows[0].block_table[shared]
    assert [bench.kv.pool.references(block) for block in rows[0].block_table[:shared]] == [3] * shared
    bench.run_to_the_end()
    expected = [1000 + index % prompt_len for index in range(20)]
    assert bench.choices == {SequenceKey("aa", 1, choice): expected for choice in range(3)}
    assert bench.kv.pool.free_blocks == 20


def test_choices_wait_for_slots_one_by_one() -> None:
    bench = Bench(blocks=20, max_rows=2)
    submit_choices(bench, 1, 10, 5, max_tokens=4)
    plans = bench.run_to_the_end()
    assert max(len(plan.rows) for plan in plans) == 2
    assert len(bench.choices) == 5


def test_choices_outlive_the_first_and_survive_preemption() -> None:
    # Given choices in a pool too small for all, with other rows beside them
    for recovery in ("recompute", "swap"):
        bench = Bench(blocks=12, host_blocks=12, recovery=recovery, prefix_cache=True)
        submit_choices(bench, 1, 37, 4, max_tokens=50)
        bench.submit(2, 50, max_tokens=40)
        bench.run_to_the_end()
        assert bench.scheduler.preemptions > 0
        expected = [1000 + index % 37 for index in range(50)]
        assert [bench.choices[SequenceKey("aa", 1, choice)] for choice in range(4)] == [expected] * 4
        assert bench.outputs[2] == [2000 + index % 50 for index in range(40)]


def test_a_choice_whose_first_was_cancelled_computes_the_prompt_itself() -> None:
    bench = Bench(blocks=20)
    rows = submit_choices(bench, 1, 100, 2, max_tokens=3)
    assert counts(bench.step()) == {1: 64}
    bench.scheduler.cancel(rows[0].key, "cancelled")
    plans = bench.run_to_the_end()
    assert sum(len(row.tokens) for plan in plans for row in plan.rows) == 100 + 2
    assert bench.choices == {rows[1].key: [1000, 1001, 1002]}
