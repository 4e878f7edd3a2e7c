"""Decides what the next step computes: continuous batching with chunked prefill over a paged KV pool.

One mixed step holds, in this order: one token of every decoding row, continuations of prompts begun earlier,
new admissions; prompts within a token budget (Sarathi-Serve, arXiv 2403.02310). Pure: no torch, no clock,
nothing is computed here. `schedule` and `apply` alternate; `submit` and `cancel` may come at any time.
"""

from collections import deque
from collections.abc import Callable, Iterator

from gpuworker.engine.block_pool import BLOCK_SIZE, BlockPool, blocks_for
from gpuworker.engine.plan import PlanRow, RowStart, StepPlan, StepResult
from gpuworker.engine.sequence import Sequence, Status
from gpuworker.wire.messages import RowKey
from policy.pacing import StepPacer

# Is shown every sampled token, already appended, and says whether a stop string ended the row's text.
TokenSink = Callable[[Sequence, int], bool]

MAX_STEP_TOKENS = 512
MIN_PREFILL_TOKENS = 16  # prefill goes on at this pace however many rows decode


class Scheduler:
    def __init__(
        self,
        *,
        blocks: int,
        max_rows: int,
        max_context_tokens: int,
        pacer: StepPacer | None = None,
        max_step_tokens: int = MAX_STEP_TOKENS,
    ) -> None:
        self.pool = BlockPool(blocks)
        self.max_rows = max_rows
        # A row that runs alone may fill the pool, so within this bound no row is ever stuck.
        self.max_servable_tokens = min(max_context_tokens, blocks * BLOCK_SIZE)
        self.preemptions = 0
        self._pacer = pacer
        self._max_step_tokens = max_step_tokens
        self._rows: dict[RowKey, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # in order of admission
        self._free_slots = list(range(max_rows - 1, -1, -1))
        self._in_flight: frozenset[RowKey] = frozenset()
        self._finished: list[Sequence] = []

    # -- requests in and out ------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """The caller has checked the servable bound."""
        if sequence.key in self._rows:
            raise ValueError(f"{sequence.key} is already known")
        self._rows[sequence.key] = sequence
        self._waiting.append(sequence)

    def cancel(self, key: RowKey, reason: str, message: str = "") -> None:
        """In any state, and any number of times. A row in flight keeps its blocks until `apply`."""
        sequence = self._rows.get(key)
        if sequence is None or sequence.reason:
            return
        sequence.reason, sequence.message = reason, message
        if key not in self._in_flight:
            self._retire(sequence)

    def take_finished(self) -> list[Sequence]:
        """Rows that ended since the last call, each exactly once. They hold nothing any more."""
        finished, self._finished = self._finished, []
        return finished

    def sequence(self, key: RowKey) -> Sequence:
        """Of a row that has not ended."""
        return self._rows[key]

    def row_keys(self) -> list[RowKey]:
        return list(self._rows)

    def has_work(self) -> bool:
        return bool(self._rows or self._finished)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def pending_prefill_tokens(self) -> int:
        waiting = sum(len(sequence.token_ids) for sequence in self._waiting)
        return waiting + sum(sequence.remaining for sequence in self._running if sequence.remaining > 1)

    # -- one step -----------------------------------------------------------------------------------------

    def schedule(self, now_ms: float) -> StepPlan:
        if self._in_flight:
            raise RuntimeError("the previous plan was not applied")
        for sequence in [row for row in self._rows.values() if row.deadline_ms <= now_ms]:
            self.cancel(sequence.key, "deadline")
        rows = list(self._plan_decodes())
        budget = self._prefill_budget(len(rows))
        starts: list[RowStart] = []
        for sequence in self._running:
            if sequence.remaining > 1 and budget > 0:
                rows.append(self._plan_row(sequence, budget, new_blocks=0))
                budget -= len(rows[-1].tokens)
        while budget > 0 and (newcomer := self._admit(now_ms)):
            starts.append(RowStart(newcomer.key, newcomer.slot, newcomer.prompt, newcomer.submit.sampling))
            rows.append(self._plan_row(newcomer, budget, new_blocks=blocks_for(len(newcomer.token_ids))))
            budget -= len(rows[-1].tokens)
        self._in_flight = frozenset(row.key for row in rows)
        return StepPlan(rows, starts)

    def apply(self, plan: StepPlan, result: StepResult, now_ms: float, on_token: TokenSink) -> None:
        """Takes in a step's tokens: rows that were cancelled meanwhile get none."""
        self._in_flight = frozenset()
        for row in plan.rows:
            sequence = self._rows[row.key]
            if not sequence.reason and row.key in result.failed:
                sequence.reason, sequence.message = "error", result.failed[row.key]
            if not sequence.reason:
                sequence.num_computed += len(row.tokens)
                if row.sample:
                    self._append(sequence, result.tokens[row.key], now_ms, on_token)
            if sequence.reason:
                self._retire(sequence)

    def check_integrity(self) -> None:
        """Raises PoolCorrupt when blocks are lost or shared by accident. Cheap: meant for idle moments."""
        self.pool.check_integrity(sequence.block_table for sequence in self._rows.values())

    # -- parts of a step ----------------------------------------------------------------------------------

    def _plan_decodes(self) -> Iterator[PlanRow]:
        for sequence in [row for row in self._running if row.remaining == 1]:
            grow = int(sequence.num_computed == len(sequence.block_table) * BLOCK_SIZE)
            # The victim is the newest row, so never one that this step already planned.
            while grow and sequence.status is Status.RUNNING and not self.pool.free_blocks:
                self._preempt(self._running[-1])
            if sequence.status is Status.RUNNING:
                yield self._plan_row(sequence, 1, new_blocks=grow)

    def _plan_row(self, sequence: Sequence, budget: int, *, new_blocks: int) -> PlanRow:
        taken = self.pool.allocate(new_blocks)
        offset = len(sequence.block_table)
        sequence.block_table += taken
        start = sequence.num_computed
        tokens = sequence.token_ids[start : start + budget]
        sample = start + len(tokens) == len(sequence.token_ids)
        return PlanRow(sequence.key, sequence.slot, start, tokens, offset, taken, sample)

    def _prefill_budget(self, decode_rows: int) -> int:
        if self._pacer is not None:
            return min(self._pacer.prefill_budget(decode_rows), self._max_step_tokens)
        return max(self._max_step_tokens - decode_rows, MIN_PREFILL_TOKENS)

    def _admit(self, now_ms: float) -> Sequence | None:
        """The oldest waiting row, if the whole of it fits and running rows keep room to grow. A row preempted
        in this step never fits: it is the oldest, and part of what it held has just been taken."""
        if not self._waiting or not self._free_slots:
            return None
        sequence = self._waiting[0]
        if blocks_for(len(sequence.token_ids)) + self._watermark() > self.pool.free_blocks:
            return None
        self._waiting.popleft()
        sequence.status = Status.RUNNING
        sequence.slot = self._free_slots.pop()
        if sequence.started_ms is None:
            sequence.started_ms = now_ms
        self._running.append(sequence)
        return sequence

    def _watermark(self) -> int:
        """Blocks that stay free at an admission, else the next decodes preempt the newcomer at once."""
        if not self._running:
            return 0
        return max(2, self.pool.blocks // 64, len(self._running))

    def _preempt(self, sequence: Sequence) -> None:
        """By recomputation: its blocks go, its ids stay, it is first in line."""
        self._take_back(sequence)
        self._running.remove(sequence)
        self._waiting.appendleft(sequence)
        sequence.status = Status.WAITING
        sequence.num_computed = 0
        sequence.preemptions += 1
        self.preemptions += 1

    def _append(self, sequence: Sequence, token: int, now_ms: float, on_token: TokenSink) -> None:
        sequence.token_ids.append(token)
        if sequence.first_token_ms is None:
            sequence.first_token_ms = now_ms
        text_ended = on_token(sequence, token)
        if text_ended or token in sequence.stop_ids:
            sequence.reason = "stop"
        elif sequence.output_len >= sequence.max_tokens:
            sequence.reason = "length"

    def _retire(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING:
            self._take_back(sequence)
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.status = Status.FINISHED
        del self._rows[sequence.key]
        self._finished.append(sequence)

    def _take_back(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
