"""Step-level fairness: rows of a tenant beyond its share yield to the others, a step at a time."""

import pytest

from gpuworker.engine.plan import StepPlan
from policy.pacing import StepPacer
from tests.engine.scheduler_bench import Bench, counts

BASE_MS, ROW_MS, TOKEN_MS = 4.0, 2.0, 0.5
TARGET_MS = 40.0


class TimedBench(Bench):
    """The clock moves by a step model."""

    def __init__(
        self, *, blocks: int = 2000, max_rows: int = 64, host_blocks: int = 0, row_ms: float = ROW_MS
    ) -> None:
        self.pacer = StepPacer(TARGET_MS)
        self.row_ms = row_ms
        super().__init__(
            blocks=blocks, max_rows=max_rows, max_step_tokens=512, host_blocks=host_blocks, pacer=self.pacer
        )

    def step(self) -> StepPlan:
        plan = super().step()
        took_ms = BASE_MS + self.row_ms * plan.decode_rows + TOKEN_MS * plan.prefill_tokens
        self.now_ms += took_ms
        if plan.rows:
            self.pacer.observe(plan.decode_rows, plan.prefill_tokens, plan.context_tokens, took_ms)
        return plan

    def learn(self) -> None:
        """A varied load teaches the pacer."""
        for sid in range(900, 916):
            self.submit(sid, 20 + 30 * (sid % 5), max_tokens=20 + sid % 7, tenant="teacher")
            self.step()
        self.run_to_the_end()
        self.outputs.clear()


def test_a_newcomers_first_token_does_not_wait_for_the_backlog_of_another() -> None:
    # Given a tenant whose long outputs fill the batch, and more of it waiting
    bench = TimedBench()
    bench.learn()
    for sid in range(1, 60):
        bench.submit(sid, 40, max_tokens=2000, tenant="noisy")
    for _ in range(80):
        bench.step()
    # When another tenant asks with a prompt of 100
    begun_ms = bench.now_ms
    bench.submit(100, 100, max_tokens=5, tenant="quiet")
    while 100 not in bench.outputs:
        bench.step()
    # Then its first token comes within a few steps
    assert bench.now_ms - begun_ms <= 4 * TARGET_MS


def test_paused_decodes_run_again_within_the_pause_limit() -> None:
    # Given a tenant beyond its share, and another that always has prompts to compute
    bench = TimedBench()
    bench.learn()
    for sid in range(1, 40):
        bench.submit(sid, 16, max_tokens=3000, tenant="noisy")
    for _ in range(40):
        bench.step()
    last_ms = dict.fromkeys(bench.outputs, bench.now_ms)
    longest, paused = 0.0, 0
    for sid in range(100, 400):
        if sid % 3 == 0:
            bench.submit(sid, 60, max_tokens=2, tenant=f"quiet {sid % 4}")
        plan = bench.step()
        paused += bench.scheduler.paused
        for row in plan.rows:
            if row.key.sid in last_ms:
                longest = max(longest, bench.now_ms - last_ms[row.key.sid])
                last_ms[row.key.sid] = bench.now_ms
    assert paused > 0
    assert longest <= 250 + 3 * TARGET_MS * 2


def test_a_lone_tenant_may_have_everything() -> None:
    bench = TimedBench()
    bench.learn()
    for sid in range(1, 10):
        bench.submit(sid, 16, max_tokens=100, tenant="only")
    bench.step()
    bench.step()
    assert len(bench.step().rows) == 9


def test_batch_yields_to_interactive_and_uses_what_is_left() -> None:
    bench = TimedBench()
    bench.learn()
    bench.submit(1, 400, max_tokens=5, tenant="a", klass="batch")
    bench.submit(2, 100, max_tokens=5, tenant="b")
    plan = bench.step()
    assert counts(plan)[2] == 100
    assert counts(plan)[1] < 400
    bench.run_to_the_end()
    assert len(bench.outputs[1]) == 5


def test_batch_whose_deadline_is_near_does_not_yield_as_batch_does() -> None:
    bench = TimedBench(row_ms=10.0)
    bench.learn()
    for sid, klass in ((1, "batch"), (2, "batch_urgent")):
        bench.submit(sid, 16, max_tokens=4000, tenant="a", klass=klass)
    for _ in range(5):
        bench.step()
    bench.submit(3, 400, max_tokens=5, tenant="b")
    rows = [row.key.sid for _ in range(5) for row in bench.step().rows]
    assert rows.count(1) < rows.count(2) == 5


def test_rows_of_an_over_share_tenant_leave_the_device_for_one_within_its_share() -> None:
    # Given a tenant that fills pool and slots
    bench = TimedBench(blocks=64, max_rows=16)
    bench.learn()
    for sid in range(1, 30):
        bench.submit(sid, 48, max_tokens=400, tenant="noisy")
    for _ in range(60):
        bench.step()
    # When another tenant asks
    begun_ms = bench.now_ms
    bench.submit(100, 200, max_tokens=5, tenant="quiet")
    while 100 not in bench.outputs:
        bench.step()
    # Then it is served at once, at the expense of the newest
    assert bench.now_ms - begun_ms <= 10 * TARGET_MS
    for _ in range(20_000):
        if not bench.scheduler.has_work():
            break
        bench.step()
        bench.scheduler.take_finished()
    assert [len(bench.outputs[sid]) for sid in range(1, 30)] == [400] * 29


def test_fifty_waiting_of_one_tenant_and_one_of_another() -> None:
    bench = Bench(blocks=400, max_rows=4, max_step_tokens=64)
    for sid in range(1, 51):
        bench.submit(sid, 20, max_tokens=10, tenant="many")
    bench.step()
    bench.submit(100, 20, max_tokens=10, tenant="one")
    steps = 0
    while 100 not in bench.outputs:
        bench.step()
        steps += 1
    assert steps <= 12


def noisy(bench: TimedBench, tenant: str, first_sid: int, rows: int, weight: float = 1.0) -> None:
    for sid in range(first_sid, first_sid + rows):
        bench.submit(sid, 16, max_tokens=5000, tenant=tenant, weight=weight)


def tokens_of(bench: Bench, first_sid: int, rows: int) -> int:
    return sum(len(bench.outputs.get(sid, ())) for sid in range(first_sid, first_sid + rows))


def test_a_second_noisy_tenant_does_not_wait_for_rows_of_the_first_to_end() -> None:
    # Given a tenant that holds all the rows that the target allows, with outputs that never end
    bench = TimedBench()
    bench.learn()
    noisy(bench, "first", 1000, 60)
    for _ in range(100):
        bench.step()
    # When another comes that wants as much
    begun_ms = bench.now_ms
    noisy(bench, "second", 2000, 60)
    while not tokens_of(bench, 2000, 60):
        bench.step()
    # Then it begins at once, and its part of the rows runs at every step; the first uses what is left
    assert bench.now_ms - begun_ms <= 4 * TARGET_MS
    for _ in range(100):
        bench.step()
    running = [sid for sid in range(2000, 2060) if sid in bench.outputs]
    before = tokens_of(bench, 2000, 60)
    for _ in range(400):
        bench.step()
    assert len(running) >= 4
    assert tokens_of(bench, 2000, 60) - before >= 0.95 * 400 * len(running)


def test_what_a_tenant_holds_beyond_its_part_gives_way_when_slots_are_short() -> None:
    # Given a tenant that holds all slots, with outputs that never end
    bench = TimedBench(max_rows=8)
    bench.learn()
    noisy(bench, "first", 1000, 20)
    for _ in range(50):
        bench.step()
    # When another comes that wants as much
    begun_ms = bench.now_ms
    noisy(bench, "second", 2000, 20)
    while not tokens_of(bench, 2000, 20):
        bench.step()
    assert bench.now_ms - begun_ms <= 4 * TARGET_MS
    # Then each keeps its part, and nobody is sent to and fro
    for _ in range(50):
        bench.step()
    preemptions = bench.scheduler.preemptions
    rows = [row.key.sid // 1000 for _ in range(10) for row in bench.step().rows]
    assert 3 <= rows.count(1) / 10 <= 5
    assert 3 <= rows.count(2) / 10 <= 5
    for _ in range(200):
        bench.step()
    assert bench.scheduler.preemptions == preemptions <= 5


def test_noisy_tenants_share_by_weight() -> None:
    bench = TimedBench()
    bench.learn()
    noisy(bench, "one", 1000, 60)
    noisy(bench, "three", 2000, 60, weight=3.0)
    for _ in range(100):
        bench.step()
    before = [tokens_of(bench, first, 60) for first in (1000, 2000)]
    for _ in range(600):
        bench.step()
    one, three = (tokens_of(bench, sid, 60) - had for sid, had in zip((1000, 2000), before, strict=True))
    assert 2.7 <= three / one <= 3.3


@pytest.mark.parametrize("newcomers", [1, 2, 8])
def test_single_rows_of_many_tenants_never_wait_for_a_backlog(newcomers: int) -> None:
    # Given a machine on which few rows meet the target, and a tenant that takes them all for long
    bench = TimedBench(max_rows=8, row_ms=6.0)
    for sid in range(20):
        bench.submit(sid, 16, max_tokens=400, tenant="noisy")
    for _ in range(100):
        bench.step()
    # When others ask for one row each
    begun_ms = bench.now_ms
    for sid in range(100, 100 + newcomers):
        bench.submit(sid, 16, max_tokens=20, tenant=f"quiet {sid}")
    while not all(sid in bench.outputs for sid in range(100, 100 + newcomers)):
        bench.step()
    assert bench.now_ms - begun_ms <= (3 + newcomers) * 2 * TARGET_MS
