"""Random histories of the scheduler on a small pool, against a model of what must hold at every step.

The runner keeps real paged memory: a row that reads what is not its own samples another token.
"""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.budget import MIN_PREFILL_TOKENS, PAUSE_MS, StepLimits
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import PlanRow, Sampled, SequenceKey, StepPlan, StepResult
from gpuworker.engine.preemption import Recovery, RecoveryMode
from gpuworker.engine.scheduler import Scheduler
from gpuworker.engine.sequence import Sequence, Status
from gpuworker.wire.messages import TokenLogprobs
from policy.pacing import IDLE_FACTOR, StepPacer
from policy.step_cost import chunk_pairs
from tests.engine.hashing_runner import HashingRunner
from tests.engine.history import REQUESTS, Choice, Request

BLOCKS, MAX_ROWS, STEP_TOKENS, TARGET_MS = 10, 6, 40, 40.0
CONTEXT_TOKENS = 130
LONGEST_WAIT_MS = 400.0


class SchedulerHistory(RuleBasedStateMachine):
    mode: RecoveryMode = "auto"

    @initialize(host_blocks=st.sampled_from([0, 4, 40]), row_ms=st.sampled_from([0, 1, 12]))
    def begin(self, host_blocks: int, row_ms: int) -> None:
        """`row_ms` 0: no pacing. At 12, two rows can decode within the target."""
        self.row_ms = row_ms or 1
        self.pacer = StepPacer(TARGET_MS, min_tokens=MIN_PREFILL_TOKENS) if row_ms else None
        for step in range(40 if self.pacer else 0):
            self._measure(step % 5, step % 3 * 17, step % 5 * (30 + step), step % 3 * 17 * step)
        limits = StepLimits(self.pacer, max_rows=MAX_ROWS, max_step_tokens=STEP_TOKENS)
        self.scheduler = Scheduler(
            KVManager(BLOCKS, host_blocks=host_blocks),
            max_rows=MAX_ROWS,
            max_context_tokens=CONTEXT_TOKENS,
            limits=limits,
            recovery=Recovery(limits.cost, self.mode),
        )
        self.runner = HashingRunner(BLOCKS, host_blocks)
        self.open: dict[SequenceKey, Choice] = {}
        self.ended: list[SequenceKey] = []
        self.now_ms = 1.0
        self.last_sid = 0

    # -- what happens -------------------------------------------------------------------------------------

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def submit(self, requests: list[Request]) -> None:
        for request in requests:
            self.last_sid += 1
            bound = self.scheduler.max_servable_tokens
            for sequence in request.sequences(self.last_sid, max_servable_tokens=bound, now_ms=self.now_ms):
                self.scheduler.submit(sequence)
                self.open[sequence.key] = Choice(sequence)

    @rule(steps=st.sampled_from([1, 4, 20]))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    @rule(passed_ms=st.sampled_from([50.0, LONGEST_WAIT_MS]))
    def wait(self, passed_ms: float) -> None:
        self.now_ms += passed_ms

    @precondition(lambda self: self.open)
    @rule(data=st.data(), during_a_step=st.booleans())
    def cancel(self, data: st.DataObject, during_a_step: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.open)))
        if during_a_step:
            self._step(cancel=key)
        else:
            self._cancel(key)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), held=st.booleans())
    def hold(self, data: st.DataObject, held: bool) -> None:
        self.scheduler.hold(data.draw(st.sampled_from(sorted(self.open))), held)

    @rule()
    def run_to_the_end(self) -> None:
        """Nobody is starved and nothing is computed over and over: the work there is bounds the steps."""
        for key in self.open:
            self.scheduler.hold(key, False)
        work = sum(len(c.sequence.token_ids) + c.sequence.max_tokens for c in self.open.values())
        for _ in range(2 * work + 10):
            if not self.scheduler.has_work():
                break
            self._step()
        assert not self.open, "starved"
        assert self.scheduler.kv.pool.free_blocks == BLOCKS

    # -- one step, and what must hold in it ---------------------------------------------------------------

    def _step(self, cancel: SequenceKey | None = None) -> None:
        due = [choice for choice in self.open.values() if choice.is_due(self.now_ms)]
        decoding = [c for c in due if c.sequence.status is Status.RUNNING and c.sequence.remaining == 1]
        plan = self.scheduler.schedule(self.now_ms)
        assert plan.rows or not due, "no progress"
        assert len({row.slot for row in plan.rows}) == len(plan.rows) <= MAX_ROWS
        for row in plan.rows:
            self._check_row(row)
        self._check_budget(plan, {choice.sequence.key for choice in decoding})
        self._check_pauses(plan, decoding)
        self.runner.move(plan.moves)
        sampled = self.runner.run(plan)
        if cancel is not None:
            self._cancel(cancel)
        if plan.rows:
            self.now_ms += self._measure(
                plan.decode_rows, plan.prefill_tokens, plan.context_tokens, plan.prefill_pairs
            )
        result = StepResult({row.key: s for row, s in zip(plan.rows, sampled, strict=True)}, {})
        self.scheduler.apply(plan, result, self.now_ms, self)
        for ended in self.scheduler.take_finished():
            self.ended.append(ended.key)
            self.open.pop(ended.key).check_end(self.now_ms)

    def _check_row(self, row: PlanRow) -> None:
        """Only of a sequence that may run; and it writes only where nobody else reads."""
        choice = self.open[row.key]
        assert not choice.cancelled
        assert not choice.sequence.held
        assert choice.sequence.deadline_ms > self.now_ms
        last = row.start + len(row.tokens) - 1
        for block in choice.sequence.block_table[row.start // BLOCK_SIZE : last // BLOCK_SIZE + 1]:
            assert self.scheduler.kv.pool.is_writable(block)

    def _check_budget(self, plan: StepPlan, decoding: set[SequenceKey]) -> None:
        decodes = [row for row in plan.rows if row.key in decoding]
        chunks = [row for row in plan.rows if row.key not in decoding]
        prompt_tokens = sum(len(row.tokens) for row in chunks)
        if self.pacer is None:
            assert prompt_tokens <= max(STEP_TOKENS - len(decoding), MIN_PREFILL_TOKENS)
        elif prompt_tokens > MIN_PREFILL_TOKENS:
            pairs = sum(chunk_pairs(len(row.tokens), row.start) for row in chunks)
            context_tokens = sum(row.start + 1 for row in decodes)
            cost_ms = self.pacer.predict_ms(len(decodes), prompt_tokens, context_tokens, pairs)
            over = self.scheduler._batch.shares.over
            waits = any(self.open[key].sequence.flow not in over for key in decoding)
            assert cost_ms <= (self.pacer.allowed_ms() if waits else self.pacer.idle_ms()) + 1e-6

    def _check_pauses(self, plan: StepPlan, decoding: list[Choice]) -> None:
        """Every decode is in the step, or gave way, or is paused: only when paced, and not for long."""
        planned = {row.key for row in plan.rows}
        paused = [
            c for c in decoding if c.sequence.key not in planned and c.sequence.status is Status.RUNNING
        ]
        assert len(paused) == self.scheduler.paused
        assert self.pacer or not paused
        for choice in self.open.values():
            if choice not in paused:
                choice.paused_since_ms = None
                continue
            if choice.paused_since_ms is None:
                choice.paused_since_ms = self.now_ms
            longest_ms = PAUSE_MS + LONGEST_WAIT_MS + MAX_ROWS * IDLE_FACTOR * TARGET_MS
            assert self.now_ms - choice.paused_since_ms <= longest_ms

    def _measure(self, decodes: int, prompt_tokens: int, context_tokens: int, pairs: int) -> float:
        step_ms = 5 + self.row_ms * decodes + 0.4 * prompt_tokens + 0.01 * context_tokens + 0.01 * pairs
        if self.pacer is not None:
            self.pacer.observe(decodes, prompt_tokens, context_tokens, step_ms, pairs)
        return step_ms

    def _cancel(self, key: SequenceKey) -> None:
        self.scheduler.cancel(key, "cancelled")
        if key in self.open:
            self.open[key].cancelled = True

    # -- the scheduler's sink -----------------------------------------------------------------------------

    def token(self, sequence: Sequence, sampled: Sampled) -> str:
        self.open[sequence.key].check_token(sampled.token)
        return ""

    def prompt_logprobs(self, sequence: Sequence, first: int, tokens: list[TokenLogprobs]) -> None:
        assert [entry.token for entry in tokens] == sequence.prompt[first : first + len(tokens)]

    # -- between steps ------------------------------------------------------------------------------------

    @invariant()
    def pool_is_whole(self) -> None:
        self.scheduler.check_integrity()
        pool = self.scheduler.kv.pool
        entries = Counter(block for c in self.open.values() for block in c.sequence.block_table)
        assert [pool.references(block) for block in range(BLOCKS)] == [entries[b] for b in range(BLOCKS)]
        assert len(entries) + pool.free_blocks == BLOCKS
        owners = {(b, c.sequence.flow.tenant) for c in self.open.values() for b in c.sequence.block_table}
        assert len(owners) == len(entries), "tenants share a block"
        assert len(self.ended) == len(set(self.ended))


class ByRecompute(SchedulerHistory):
    mode = "recompute"


class BySwap(SchedulerHistory):
    mode = "swap"


TestAuto, TestByRecompute, TestBySwap = SchedulerHistory.TestCase, ByRecompute.TestCase, BySwap.TestCase
TestAuto.settings = TestByRecompute.settings = TestBySwap.settings = settings(
    max_examples=670, stateful_step_count=30, deadline=None
)
