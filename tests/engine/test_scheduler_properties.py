"""Random histories of submit, step and cancel against a small model of what must hold."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.plan import StepResult
from gpuworker.engine.scheduler import MIN_PREFILL_TOKENS, Scheduler
from gpuworker.engine.sequence import Sequence, Status
from tests.engine.support import PagedEchoRunner, key, submit_make

BLOCKS, MAX_ROWS, STEP_TOKENS = 12, 5, 40


class SchedulerHistory(RuleBasedStateMachine):
    """The runner keeps real paged memory, so a row that reads another's block fails at once."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(
            blocks=BLOCKS, max_rows=MAX_ROWS, max_context_tokens=150, max_step_tokens=STEP_TOKENS
        )
        self.runner = PagedEchoRunner(BLOCKS)
        self.open: dict[int, Sequence] = {}
        self.outputs: dict[int, list[int]] = {}
        self.cancelled: set[int] = set()
        self.ended: list[int] = []
        self.last_sid = 0

    @rule(prompt_len=st.integers(1, 120), max_tokens=st.integers(1, 60), deadline=st.sampled_from([0, 10**6]))
    def submit(self, prompt_len: int, max_tokens: int, deadline: int) -> None:
        self.last_sid += 1
        sid = self.last_sid
        max_tokens = min(max_tokens, self.scheduler.max_servable_tokens - prompt_len)
        submit = submit_make(sid, [1000 * sid + index for index in range(prompt_len)], deadline_ms=deadline)
        row = Sequence(key(sid), submit, max_tokens=max_tokens, stop_ids=frozenset(), now_ms=1)
        self.scheduler.submit(row)
        self.open[sid] = row

    @rule()
    def step(self) -> None:
        self._step(cancel=None)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._cancel(data.draw(st.sampled_from(sorted(self.open))))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel_while_the_step_runs(self, data: st.DataObject) -> None:
        self._step(cancel=data.draw(st.sampled_from(sorted(self.open))))

    @rule()
    def run_to_the_end(self) -> None:
        """Every row ends: in each step at least one token is computed or a row ends."""
        for _ in range(sum(len(row.token_ids) + row.max_tokens for row in self.open.values()) * 2 + 10):
            if not self.scheduler.has_work():
                break
            self._step(cancel=None)
        assert not self.open
        assert self.scheduler.pool.free_blocks == BLOCKS

    def _step(self, cancel: int | None) -> None:
        plan = self.scheduler.schedule(now_ms=2)
        budget = max(STEP_TOKENS - plan.decode_rows, MIN_PREFILL_TOKENS)
        assert plan.prefill_tokens <= budget
        assert len({row.key for row in plan.rows}) == len(plan.rows) <= MAX_ROWS
        live = [sid for sid, row in self.open.items() if row.deadline_ms > 2 and sid not in self.cancelled]
        assert plan.rows or not live, "no progress"
        assert not {row.key.sid for row in plan.rows} & self.cancelled
        sampled = self.runner.run(plan)
        if cancel is not None:
            self._cancel(cancel)
        tokens = {row.key: token for row, token in zip(plan.rows, sampled, strict=True)}
        self.scheduler.apply(plan, StepResult(tokens, {}), 2, self._note)
        self._collect()

    def _note(self, row: Sequence, token: int) -> bool:
        assert row.key.sid not in self.cancelled
        self.outputs.setdefault(row.key.sid, []).append(token)
        return False

    def _cancel(self, sid: int) -> None:
        self.scheduler.cancel(key(sid), "cancelled")
        if sid in self.open:
            self.cancelled.add(sid)

    def _collect(self) -> None:
        for row in self.scheduler.take_finished():
            sid = row.key.sid
            self.ended.append(sid)
            del self.open[sid]
            output = self.outputs.get(sid, [])
            assert output == [1000 * sid + index % row.prompt_len for index in range(len(output))]
            assert row.block_table == []
            if row.reason == "cancelled":
                assert sid in self.cancelled
            elif row.reason == "deadline":
                assert row.deadline_ms <= 2
            else:
                assert row.reason == "length"
                assert len(output) == row.max_tokens

    @invariant()
    def pool_is_whole(self) -> None:
        self.scheduler.check_integrity()
        held = sum(len(row.block_table) for row in self.open.values())
        assert held + self.scheduler.pool.free_blocks == BLOCKS
        for row in self.open.values():
            assert row.status is Status.FINISHED or len(row.block_table) * BLOCK_SIZE >= row.num_computed
        assert len(self.ended) == len(set(self.ended))


TestSchedulerHistory = SchedulerHistory.TestCase
TestSchedulerHistory.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
