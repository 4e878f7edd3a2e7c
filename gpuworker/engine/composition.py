"""One step while it is put together: which rows it holds, and what it has left for others. No torch here.

A row that is added never gives way in the same step: its blocks are its own until the step was taken in.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush

from gpuworker.engine.batch import Batch
from gpuworker.engine.budget import StepBudget
from gpuworker.engine.flows import Flows
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import PlanRow, RowStart, SequenceKey
from gpuworker.engine.sequence import Sequence, Status
from policy.flow import BATCH, Flow
from policy.step_turn import Turn, may_overtake


class StepComposition:
    def __init__(self, kv: KVManager, flows: Flows, batch: Batch, budget: StepBudget, now_ms: float) -> None:
        self.rows: list[PlanRow] = []
        self.starts: dict[SequenceKey, RowStart] = {}
        self.paused = 0  # decodes that are left out
        self.costs: dict[Flow, float] = {}  # predicted milliseconds of the rows
        self._kv = kv
        self._flows = flows
        self._batch = batch
        self._budget = budget
        self._now_ms = now_ms
        batch.planned = set()

    def owe_batch(self, yielding: Iterable[Sequence], owed_ms: float) -> None:
        """Before all else: `owed_ms` are for batch, the least served flow's rows first."""
        time, over = self._flows.time, self._batch.shares.over
        decodes = [row for row in yielding if row.flow.klass == BATCH]
        decodes.sort(key=lambda row: (time(row.flow), row.last_run_ms))
        prompts = [
            row
            for row in self._batch.active
            if row.flow.klass == BATCH and row.flow in over and row.remaining > 1
        ]
        self._budget.owe_batch(decodes, prompts, owed_ms)

    def add_decodes(self, rows: Collection[Sequence]) -> list[Sequence]:
        """The least served flow's first: so the victims of a preemption come last. Returns those that wait
        for batch to have what it is owed."""
        left_out = self._budget.left_out(rows)
        keys = {row.key for row in left_out}
        for sequence in sorted(rows, key=lambda row: self._flows.time(row.flow)):
            if sequence.key not in keys:
                self._add_decode(sequence)
        return left_out

    def add_owed_prompts(self, row_limit: int) -> None:
        """Of batch."""
        if self._budget.begin_batch():
            over = self._batch.shares.over
            self.add_prompts({flow for flow in over if flow.klass == BATCH}, row_limit)
        self._budget.end_batch()

    def add_yielding(self, rows: Collection[Sequence]) -> None:
        """Decodes of over-share flows: those that time was kept for, then the others while they fit, those
        that made room for batch first, the least served flow's first, batch last, of one flow those that
        waited longest."""
        for sequence in self._budget.kept:
            if sequence.key not in self._batch.planned:  # it may have given way and come back in this step
                self._add_decode(sequence)
        time, over = self._flows.time, self._batch.shares.over
        key = lambda row: (row.flow in over, row.flow.klass == BATCH, time(row.flow), row.last_run_ms)  # noqa: E731
        for sequence in sorted((row for row in rows if row.key not in self._batch.planned), key=key):
            if not self.rows or self._budget.has_room_for(sequence):
                self._add_decode(sequence)
            else:
                self.paused += sequence.status is Status.RUNNING

    def add_prompts(self, flows: Collection[Flow], row_limit: int, *, admitting: bool = True) -> bool:
        """Chunks and admissions, one at a time, each for the flow whose turn it is. A flow may enter while it
        runs less than its part, or there is room below `row_limit`; rows that yield to these flows do not
        count there. The first row for which time or blocks do not suffice ends admissions, so that it is not
        overtaken for ever by smaller ones: then False."""
        chunks: dict[Flow, deque[Sequence]] = {}
        competing = 0
        for row in self._batch.active:
            competing += row.flow in flows or row.flow not in self._batch.shares.over
            if row.remaining > 1 and row.flow in flows and row.key not in self._batch.planned:
                chunks.setdefault(row.flow, deque()).append(row)
        has_room = admitting and competing < row_limit
        eligible = flows if has_room else chunks.keys() | (self.entitled(flows) if admitting else set())
        turns = [self._turn(flow, chunks) for flow in eligible]
        heapify(turns)
        standing = self._batch.standing()
        while turns:
            flow = heappop(turns).flow
            may_enter = admitting and (competing < row_limit or self._batch.is_entitled(flow, standing))
            head = self._flows.head(flow) if may_enter else None
            if begun := chunks.get(flow):
                self._add_chunk(begun.popleft())
            elif head is None:
                continue
            elif self._admit(head):
                competing += 1
            else:
                admitting = False
                turns = [turn for turn in turns if turn.flow in chunks]
                heapify(turns)
                continue
            heappush(turns, self._turn(flow, chunks))
            standing = self._batch.standing()
        return admitting

    def _turn(self, flow: Flow, chunks: Mapping[Flow, deque[Sequence]]) -> Turn:
        begun = chunks.get(flow)
        row = begun[0] if begun else self._flows.head(flow)
        overtakes = row is not None and may_overtake(
            row.remaining, self._now_ms - row.last_run_ms, is_over=flow in self._batch.shares.over
        )
        return self._flows.turn(flow, overtakes=overtakes)

    def entitled(self, flows: Iterable[Flow]) -> set[Flow]:
        """Those that may enter whatever runs."""
        standing = self._batch.standing()
        return {flow for flow in flows if self._batch.is_entitled(flow, standing)}

    def _admit(self, sequence: Sequence) -> bool:
        if self._budget.prefill_tokens(sequence) <= 0 or not self._batch.enter(sequence, self._now_ms):
            return False
        self.starts[sequence.key] = sequence.row_start()
        # After a prefix hit its next token may cost more than is left. It computes one all the same: a row
        # with a slot that is not part of the step could give way before its KV is there.
        self._add_chunk(sequence, least=1)
        return True

    def _add_decode(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING and self._batch.grow(sequence, 1):
            self._add_row(sequence, 1)
            cost_ms = self._budget.spend_decode(sequence)
            self._flows.charge(sequence.flow, cost_ms)
            self._add_cost(sequence.flow, cost_ms)
            sequence.charged = len(sequence.token_ids)

    def _add_chunk(self, sequence: Sequence, *, least: int = 0) -> None:
        budget = self._budget
        count = min(max(budget.prefill_tokens(sequence), least), sequence.remaining)
        if count <= 0 or sequence.status is not Status.RUNNING or not self._batch.grow(sequence, count):
            return
        start, end = sequence.num_computed, sequence.num_computed + count
        self._add_row(sequence, count)
        self._add_cost(sequence.flow, budget.spend_chunk(start, count))
        if end > sequence.charged:  # what a preemption makes anew is charged to nobody
            fresh = max(start, sequence.charged)
            self._flows.charge(sequence.flow, budget.chunk_ms(fresh, end - fresh))
            sequence.charged = end

    def _add_cost(self, flow: Flow, cost_ms: float) -> None:
        self.costs[flow] = self.costs.get(flow, 0.0) + cost_ms

    def _add_row(self, sequence: Sequence, count: int) -> None:
        start = sequence.num_computed
        offset = min(self._kv.extend(sequence, count), sequence.table_told)
        sequence.table_told = len(sequence.block_table)
        self.rows.append(
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
        sequence.last_run_ms = self._now_ms
