"""What a replica's next step holds: the rules of the worker's `engine/scheduler` and `engine/composition`.

Decodes within their share first, then their prompts, then decodes beyond their share while they fit (the
others pause: their KV stays, they get no token), then these flows' prompts.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from fleetsim.replica_model import ReplicaModel
from fleetsim.rows import BATCH, Lane, Row
from fleetsim.step_budget import StepBudget
from fleetsim.step_memory import StepMemory
from fleetsim.step_shares import StepShares
from policy.flow import Flow
from policy.step_turn import Turn, may_overtake


@dataclass(slots=True)
class Step:
    whole: list[Lane] = field(default_factory=list)  # lanes of which every row decodes
    parts: list[tuple[Lane, list[Row]]] = field(default_factory=list)  # rows that decode, of the others
    chunks: list[tuple[Lane, Row]] = field(default_factory=list)  # prompts, already shortened by their chunk
    prefill_tokens: int = 0
    cost_ms: float = 0.0


class StepComposition:
    """One step. `lanes` are all of the replica's that hold or want anything."""

    def __init__(
        self,
        lanes: dict[Flow, Lane],
        shares: StepShares,
        memory: StepMemory,
        model: ReplicaModel,
        *,
        decoding: bool,
        row_limit: int,
        now_us: int,
    ) -> None:
        self.step = Step()
        self.charges: dict[Flow, float] = {}
        self.begun: list[Row] = []
        self._lanes, self._shares, self._memory, self._model = lanes, shares, memory, model
        self._row_limit, self._now_us = row_limit, now_us
        all_yield = not any(lane.rows for flow, lane in lanes.items() if flow not in shares.over)
        self._budget = StepBudget(model, decoding=decoding, all_yield=all_yield, now_us=now_us)
        self._planned: set[int] = set()  # numbers of rows whose prompts go on in this step
        self._begin_ms = self._budget.left_ms
        self._batch_ms = 0.0  # of the step

    def compose(self) -> Step:
        shares, budget, step = self._shares, self._budget, self.step
        within: list[Lane] = []
        beyond: list[Lane] = []
        for flow, lane in self._lanes.items():
            (beyond if flow in shares.over else within).append(lane)
        yielding = [lane for lane in beyond if lane.rows]
        batch = [lane for lane in beyond if lane.is_batch]
        if batch and shares.floor.is_due:
            batch.sort(key=lambda lane: (shares.time(lane.flow), lane.flow))
            budget.owe_batch(batch, shares.floor.step_ms(budget.most_ms))
        self._add_within([lane for lane in within if lane.rows])
        if yielding:
            budget.keep_for(yielding)
        if budget.begin_batch():
            self._add_prompts(batch, self._row_limit)
        budget.end_batch()
        admitting = self._add_prompts(within, shares.capacity)
        if beyond:
            budget.keep_all()
            entitled = [lane for lane in beyond if self._is_entitled(lane)]
            admitting = self._add_prompts(entitled, self._row_limit, admitting=admitting)
            budget.begin_yielding(others=bool(step.whole or step.parts or step.chunks))
            self._add_yielding(yielding)
            self._add_prompts(beyond, self._row_limit, admitting=admitting)
        step.prefill_tokens = budget.prefill
        rows_ms, base_ms = self._begin_ms - budget.left_ms, self._model.cost.base_ms
        step.cost_ms = rows_ms + base_ms
        whole = step.cost_ms / max(rows_ms, 1e-6)
        shares.stepped(whole * self._batch_ms, whole * (rows_ms - self._batch_ms))
        return step

    def _charge(self, flow: Flow, cost_ms: float) -> None:
        self._budget.left_ms -= cost_ms
        self._batch_ms += cost_ms if flow.klass == BATCH else 0.0
        self._shares.charge(flow, cost_ms)

    def _add_within(self, lanes: list[Lane]) -> None:
        """All of them, but for those that leave batch the time it is owed, if it is short."""
        cost, owed_ms = self._model.cost, self._budget.batch_ms
        decodes_ms = sum(lane.decodes_ms(cost) for lane in lanes) if owed_ms else 0.0
        short_ms = min(owed_ms + decodes_ms - self._budget.left_ms, owed_ms)
        for lane in lanes if short_ms <= 0 else sorted(lanes, key=lambda lane: -self._shares.time(lane.flow)):
            out, out_ms = 0, 0.0
            while out_ms < short_ms and out < len(lane.rows):
                out += 1
                out_ms += cost.decode_ms(lane.context_of(lane.rows[-out]))
            short_ms -= out_ms
            left_ms = lane.decodes_ms(cost) - out_ms
            if not out:
                self._add_whole(lane, left_ms)
            elif out < len(lane.rows):
                self._add_part(lane, [lane.rows.popleft() for _ in range(len(lane.rows) - out)], left_ms)

    def _add_whole(self, lane: Lane, cost_ms: float) -> None:
        lane.ran_us = self._now_us
        self.step.whole.append(lane)
        self._charge(lane.flow, cost_ms)

    def _add_part(self, lane: Lane, rows: list[Row], cost_ms: float) -> None:
        """Of a lane from which these rows were taken."""
        for row in rows:
            row.ran_us = self._now_us
        lane.rows.extend(rows)
        self.step.parts.append((lane, rows))
        self._charge(lane.flow, cost_ms)

    # -- decodes beyond their share ------------------------------------------------------------------------

    def _add_yielding(self, lanes: list[Lane]) -> None:
        """The overdue ones that time was kept for, then the others while they fit: the least served flow's
        first, batch last; of one flow, who waited longest."""
        time, kept = self._shares.time, self._budget.kept
        for flow, (_, kept_ms) in kept.items():
            self._charge(flow, kept_ms)
        for lane in sorted(lanes, key=lambda lane: (lane.is_batch, time(lane.flow), lane.flow)):
            kept_rows, kept_ms = kept.get(lane.flow, (0, 0.0))
            left_ms = lane.decodes_ms(self._model.cost) - kept_ms
            if left_ms <= self._budget.left_ms:
                self._add_whole(lane, left_ms)
            else:
                self._add_some(lane, kept_rows)

    def _add_some(self, lane: Lane, kept_rows: int) -> None:
        budget, cost = self._budget, self._model.cost
        ran: list[Row] = []
        skipped: list[Row] = []
        left_ms = budget.left_ms
        is_alone = not (self.step.whole or self.step.parts or self.step.chunks or budget.kept)
        while lane.rows:
            row = lane.rows.popleft()
            is_kept = len(ran) < kept_rows
            row_ms = 0.0 if is_kept else cost.decode_ms(lane.context_of(row))
            if is_kept or row_ms <= left_ms or (is_alone and not ran):
                ran.append(row)
                left_ms -= row_ms
                continue
            skipped.append(row)
            if left_ms < cost.row_ms:
                break
        lane.rows.extendleft(reversed(skipped))
        if ran:
            self._add_part(lane, ran, budget.left_ms - left_ms)

    # -- prompts -------------------------------------------------------------------------------------------

    def _add_prompts(self, lanes: Collection[Lane], row_limit: int, *, admitting: bool = True) -> bool:
        """Chunks and admissions, one at a time, each for the flow whose turn it is. A flow may enter while it
        runs less than its part, or there is room below `row_limit`; rows that yield to these flows do not
        count there. The first row for which time or memory does not suffice ends admissions: then False."""
        wanting = [lane for lane in lanes if lane.begun or (admitting and lane.waiting)]
        if not wanting:
            return admitting
        competing = self._competing(lanes) if any(lane.waiting for lane in wanting) else 0
        chunks = {
            lane.flow: deque(row for row in lane.begun if row.number not in self._planned) for lane in wanting
        }
        turn = self._turn if len(wanting) > 1 else _only_turn
        turns = [(turn(lane), lane) for lane in wanting]
        heapify(turns)
        while turns:
            lane = heappop(turns)[1]
            if begun := chunks[lane.flow]:
                self._add_chunk(lane, begun.popleft())
            elif not (admitting and lane.waiting and (competing < row_limit or self._is_entitled(lane))):
                continue
            elif self._admit(lane):
                competing += 1
            else:
                admitting = False
                turns = [entry for entry in turns if chunks[entry[1].flow]]
                heapify(turns)
                continue
            heappush(turns, (turn(lane), lane))
        return admitting

    def _competing(self, lanes: Collection[Lane]) -> int:
        """Rows that hold KV, but for those that yield to these lanes."""
        over, asked = self._shares.over, {lane.flow for lane in lanes}
        return sum(lane.active for flow, lane in self._lanes.items() if flow not in over or flow in asked)

    def _turn(self, lane: Lane) -> Turn:
        head = lane.waiting[0] if lane.waiting else None
        going = next((row for row in lane.begun if row.number not in self._planned), head)
        is_over = lane.flow in self._shares.over
        overtakes = going is not None and may_overtake(
            going.left_tokens, (self._now_us - going.ran_us) / 1000, is_over=is_over
        )
        begins = not (head and head.preemptions)
        time_us = self._shares.time(lane.flow)
        return Turn(self._shares.is_last(lane.flow), begins, not overtakes, time_us, lane.flow)

    def _is_entitled(self, lane: Lane) -> bool:
        """Whether it may enter whatever runs: it runs fewer rows than its part. One that is over-share must
        also have had no more time than some flow that runs more than its part: rows are not all alike."""
        shares = self._shares
        if lane.is_batch and shares.batch_rows > sum(len(o.rows) for o in self._lanes.values() if o.is_batch):
            return True
        if lane.active >= shares.part(lane.flow):
            return False
        if lane.flow not in shares.over:
            return True
        ahead = (shares.time(flow) for flow, o in self._lanes.items() if o.active > shares.part(flow))
        return shares.time(lane.flow) <= max(ahead, default=-1)

    def _admit(self, lane: Lane) -> bool:
        row = lane.waiting[0]
        if self._budget.prefill_tokens(row, row.need_tokens - row.left_tokens) <= 0:
            return False
        over = self._shares.over if self._is_entitled(lane) else frozenset[Flow]()
        if lane.flow in over:  # only what batch is owed makes others give way, and no batch
            over = frozenset(flow for flow in over if lane.is_batch and flow.klass != BATCH)
        if not self._memory.enter(lane, row, over):
            return False
        lane.waiting.popleft()
        self._memory.begin(lane, row)
        self._add_chunk(lane, row, least=1)
        return True

    def _add_chunk(self, lane: Lane, row: Row, *, least: int = 0) -> None:
        start = row.need_tokens - row.left_tokens
        count = min(max(self._budget.prefill_tokens(row, start), least), row.left_tokens)
        if count <= 0:
            return
        row.left_tokens -= count
        row.ran_us = self._now_us
        self._memory.pending_tokens -= count
        self._planned.add(row.number)
        self.step.chunks.append((lane, row))
        cost_ms = self._model.cost.chunk_ms(count, start)
        self._budget.spend_chunk(count, cost_ms)
        self._batch_ms += cost_ms if lane.is_batch else 0.0
        if start + count > row.charged_tokens:  # what a preemption makes anew is charged to nobody
            fresh = max(start, row.charged_tokens)
            row.charged_tokens = start + count
            self._shares.charge(lane.flow, self._model.cost.chunk_ms(start + count - fresh, fresh))


def _only_turn(lane: Lane) -> Turn:
    """Of a flow that has no rival."""
    return Turn(False, False, False, 0, lane.flow)
