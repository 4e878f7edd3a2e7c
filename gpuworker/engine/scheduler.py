"""Decides what the next step computes: continuous batching with chunked prefill over a paged KV pool.

One mixed step holds one token of every decoding row, then chunks of prompts begun earlier and new admissions,
within a time budget (Sarathi-Serve, arXiv 2403.02310). Flows within their equal share come first; the decodes
of the others may be paused for a step, their KV kept, so that nobody's first token waits for another's
backlog. Pure: no torch, no clock, nothing is computed here. `schedule` and `apply` alternate; `submit`,
`cancel` and `hold` may come at any time.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from gpuworker.engine.batch import Batch
from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.budget import StepBudget, StepLimits
from gpuworker.engine.flows import Flows
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import PlanRow, RowStart, Sampled, SequenceKey, StepPlan, StepResult
from gpuworker.engine.preemption import Recovery
from gpuworker.engine.sequence import Flow, Sequence, Status
from gpuworker.wire.messages import TokenLogprobs


class RowSink(Protocol):
    """Is shown what a step gave to each row."""

    def token(self, sequence: Sequence, sampled: Sampled) -> str:
        """The token is appended already. Returns why the row ends with it, or an empty string."""

    def prompt_logprobs(self, sequence: Sequence, first: int, tokens: list[TokenLogprobs]) -> None: ...


class Scheduler:
    def __init__(
        self,
        kv: KVManager,
        *,
        max_rows: int,
        max_context_tokens: int,
        limits: StepLimits,
        recovery: Recovery,
    ) -> None:
        self.kv = kv
        # A row that runs alone may fill the pool, so within this bound no row is ever stuck.
        self.max_servable_tokens = min(max_context_tokens, kv.pool.blocks * BLOCK_SIZE)
        self.paused = 0  # decodes that the last step left out
        self._limits = limits
        self._flows = Flows()
        self._batch = Batch(kv, self._flows, recovery, max_rows=max_rows)
        self._rows: dict[SequenceKey, Sequence] = {}
        self._finished: list[Sequence] = []
        self._in_flight: frozenset[SequenceKey] = frozenset()
        self._planned: list[PlanRow] = []
        self._starts: dict[SequenceKey, RowStart] = {}

    # -- requests in and out ------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """The caller has checked the servable bound."""
        if sequence.key in self._rows:
            raise ValueError(f"{sequence.key} is already known")
        self._rows[sequence.key] = sequence
        self._flows.enter(sequence)

    def cancel(self, key: SequenceKey, reason: str, message: str = "") -> None:
        """In any state, and any number of times. A row in flight keeps its blocks until `apply`."""
        sequence = self._rows.get(key)
        if sequence is None or sequence.reason:
            return
        sequence.reason, sequence.message = reason, message
        if key not in self._in_flight:
            self._retire(sequence)

    def hold(self, key: SequenceKey, held: bool) -> None:
        """A held row keeps its KV and computes nothing; it is the first to leave the device."""
        sequence = self._rows.get(key)
        if sequence is not None:
            self._flows.hold(sequence, held)

    def take_finished(self) -> list[Sequence]:
        """Rows that ended since the last call, each exactly once. They hold nothing any more."""
        finished, self._finished = self._finished, []
        return finished

    def sequence(self, key: SequenceKey) -> Sequence:
        """Of a row that has not ended."""
        return self._rows[key]

    @property
    def sequences(self) -> Collection[Sequence]:
        """All that have not ended."""
        return self._rows.values()

    def has_work(self) -> bool:
        """Whether a step would compute something or tell of an end."""
        if self._finished or self._batch.active:
            return True
        return any(self._flows.head(flow) for flow in self._flows)

    @property
    def next_deadline_ms(self) -> float | None:
        return min((row.deadline_ms for row in self._rows.values()), default=None)

    @property
    def running(self) -> int:
        return len(self._batch.rows)

    @property
    def waiting(self) -> int:
        return self._flows.waiting

    @property
    def preemptions(self) -> int:
        """Since start, of either kind."""
        return self._batch.preemptions

    @property
    def swaps(self) -> int:
        """Preemptions to host memory since start."""
        return self._batch.swaps

    @property
    def pending_prefill_tokens(self) -> int:
        """Choices that will share their prompt are not counted."""
        return sum(row.remaining for row in self._rows.values() if row.remaining > 1 and row.parent is None)

    def check_integrity(self) -> None:
        """Raises PoolCorrupt when blocks are lost or shared by accident. Cheap: meant for idle moments."""
        self.kv.check_integrity(self._rows.values())

    # -- one step -----------------------------------------------------------------------------------------

    def schedule(self, now_ms: float) -> StepPlan:
        if self._in_flight:
            raise RuntimeError("the previous plan was not applied")
        for sequence in [row for row in self._rows.values() if row.deadline_ms <= now_ms]:
            self.cancel(sequence.key, "deadline")
        self._planned, self._starts, self._batch.planned = [], {}, set()
        active = self._batch.active
        row_limit = self._limits.row_limit(active)
        over = self._batch.over = self._flows.over(row_limit)
        decoding = [row for row in active if row.remaining == 1]
        yielding = [row for row in decoding if row.flow in over]
        budget = self._limits.budget(decoding, now_ms)

        for sequence in self._in_turn(row for row in decoding if row.flow not in over):
            self._plan_decode(sequence, budget, now_ms)
        budget.keep_for(yielding)
        admitting = self._plan_prompts(self._flows.keys() - over, budget, now_ms, row_limit=row_limit)
        budget.begin_yielding(others=bool(self._flows.keys() - over))
        self._plan_yielding(yielding, budget, now_ms)
        self._plan_prompts(over, budget, now_ms, row_limit=row_limit if admitting else 0)
        self._in_flight = frozenset(self._batch.planned)
        return StepPlan(self._planned, list(self._starts.values()), self.kv.take_moves())

    def apply(self, plan: StepPlan, result: StepResult, now_ms: float, sink: RowSink) -> None:
        """Takes in a step's tokens: rows that were cancelled meanwhile get none."""
        self._in_flight = frozenset()
        for row in plan.rows:
            sequence = self._rows[row.key]
            if not sequence.reason and row.key in result.failed:
                sequence.reason, sequence.message = "error", result.failed[row.key]
            if not sequence.reason:
                self._advance(sequence, row, result.rows[row.key], now_ms, sink)
            if sequence.reason:
                self._retire(sequence)

    def _advance(
        self, sequence: Sequence, row: PlanRow, sampled: Sampled, now_ms: float, sink: RowSink
    ) -> None:
        sequence.num_computed += len(row.tokens)
        self.kv.publish(sequence)
        seen = sequence.prompt_reported - (
            row.start + 1
        )  # told before, when a preempted row computes it again
        if fresh := sampled.prompt[max(seen, 0) :]:
            sink.prompt_logprobs(sequence, sequence.prompt_reported, fresh)
            sequence.prompt_reported += len(fresh)
        if not row.sample:
            if not sequence.remaining:  # nothing but the prompt was wanted
                sequence.reason = "length"
            return
        sequence.token_ids.append(sampled.token)
        if sequence.first_token_ms is None:
            sequence.first_token_ms = now_ms
        sequence.reason = sink.token(sequence, sampled)
        if not sequence.reason and sampled.token in sequence.stop_ids:
            sequence.reason = "stop"
        elif not sequence.reason and sequence.output_len >= sequence.max_tokens:
            sequence.reason = "length"

    def _retire(self, sequence: Sequence) -> None:
        self.kv.release(sequence)
        if sequence.status is Status.RUNNING:
            self._batch.leave(sequence)
        else:
            self._flows.take(sequence)
        sequence.status = Status.FINISHED
        self._flows.leave(sequence)
        del self._rows[sequence.key]
        self._finished.append(sequence)

    # -- parts of a step ----------------------------------------------------------------------------------

    def _in_turn(self, rows: Iterable[Sequence]) -> list[Sequence]:
        """The least served flow's rows first, so that the victims of a preemption are planned last."""
        return sorted(rows, key=lambda row: self._flows.time(row.flow))

    def _plan_decode(self, sequence: Sequence, budget: StepBudget, now_ms: float) -> None:
        if sequence.status is Status.RUNNING and self._batch.grow(sequence, 1):
            self._plan_row(sequence, 1, now_ms)
            budget.spend_decode(sequence)
            self._flows.charge(sequence.flow, budget.decode_ms(sequence))

    def _plan_yielding(self, rows: list[Sequence], budget: StepBudget, now_ms: float) -> None:
        """Decodes of over-share flows, those that waited longest first, while they fit."""
        self.paused = 0
        for sequence in sorted(rows, key=lambda row: row.last_run_ms):
            if not self._planned or budget.has_room_for(sequence) or budget.take_overdue(sequence):
                self._plan_decode(sequence, budget, now_ms)
            else:
                self.paused += sequence.status is Status.RUNNING

    def _plan_prompts(
        self, flows: Collection[Flow], budget: StepBudget, now_ms: float, *, row_limit: int
    ) -> bool:
        """Chunks and admissions, one at a time, each for the flow whose turn it is. The first row that cannot
        enter ends admissions, so that it is not overtaken for ever by smaller ones. False when one could not.
        Rows that yield to these flows do not count against `row_limit`."""
        open_flows, over = set(flows), self._batch.over
        chunks: dict[Flow, list[Sequence]] = {flow: [] for flow in flows}
        for row in self._batch.active:
            if row.remaining > 1 and row.flow in open_flows:
                chunks[row.flow].append(row)
        admitting = True
        while open_flows:
            flow = self._flows.first(open_flows)
            sequence = chunks[flow].pop(0) if chunks[flow] else None
            if sequence is None and admitting and (head := self._flows.head(flow)) is not None:
                competing = sum(row.flow in flows or row.flow not in over for row in self._batch.active)
                admitting = (
                    competing < row_limit
                    and budget.prefill_tokens(head) > 0
                    and self._batch.enter(head, now_ms)
                )
                if admitting:
                    self._starts[head.key] = head.row_start()
                    sequence = head
            if sequence is None:
                open_flows.remove(flow)
            else:
                self._plan_chunk(sequence, budget, now_ms)
        return admitting

    def _plan_chunk(self, sequence: Sequence, budget: StepBudget, now_ms: float) -> None:
        count = min(budget.prefill_tokens(sequence), sequence.remaining)
        if count <= 0 or sequence.status is not Status.RUNNING or not self._batch.grow(sequence, count):
            return
        start, end = sequence.num_computed, sequence.num_computed + count
        self._plan_row(sequence, count, now_ms)
        budget.spend_chunk(start, count)
        if end > sequence.charged:  # what a preemption makes anew is charged to nobody
            fresh = max(start, sequence.charged)
            self._flows.charge(sequence.flow, budget.chunk_ms(fresh, end - fresh))
            sequence.charged = end

    def _plan_row(self, sequence: Sequence, count: int, now_ms: float) -> None:
        start = sequence.num_computed
        offset = min(self.kv.extend(sequence, count), sequence.table_told)
        sequence.table_told = len(sequence.block_table)
        self._planned.append(
            PlanRow(
                sequence.key,
                sequence.slot,
                start,
                sequence.token_ids[start : start + count],
                offset,
                sequence.block_table[offset:],
                start + count == len(sequence.token_ids) and sequence.max_tokens > 0,
            )
        )
        self._batch.planned.add(sequence.key)
        sequence.last_run_ms = now_ms
