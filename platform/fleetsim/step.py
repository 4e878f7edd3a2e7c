"""What a replica's next step holds: the rules of the worker's `engine/scheduler` and `engine/composition`.

Decodes within their share first, then their prompts, then decodes beyond their share while they fit (the
others pause: their KV stays, they get no token), then these flows' prompts.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from fleetsim.replica_model import ReplicaModel
from fleetsim.rows import Lane, Row
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
        self._budget = StepBudget(model, decoding=decoding, now_us=now_us)
        self._planned: set[int] = set()  # numbers of rows whose prompts go on in this step
        self._begin_ms = self._budget.left_ms

    def compose(self) -> Step:
        over, budget, step = self._shares.over, self._budget, self.step
        yielding, within, beyond = [], [], []
        for flow, lane in self._lanes.items():
            if flow in over:
                beyond.append(lane)
                if lane.rows:
                    yielding.append(lane)
                continue
            within.append(lane)
            if lane.rows:
                self._add_whole(lane, lane.decodes_ms(self._model.cost))
        if yielding:
            budget.keep_for(yielding)
        admitting = self._add_prompts(within)
        if beyond:
            budget.keep_all()
            admitting = self._add_prompts(
                [lane for lane in beyond if self._is_entitled(lane)], admitting=admitting
            )
            budget.begin_yielding(others=bool(step.whole or step.chunks))
            self._add_yielding(yielding)
            self._add_prompts(beyond, admitting=admitting)
        step.prefill_tokens = budget.prefill
        step.cost_ms = self._begin_ms - budget.left_ms + self._model.cost.base_ms
        return step

    def _charge(self, flow: Flow, cost_ms: float) -> None:
        self._budget.left_ms -= cost_ms
        self._shares.charge(flow, cost_ms)

    def _add_whole(self, lane: Lane, cost_ms: float) -> None:
        lane.ran_us = self._now_us
        self.step.whole.append(lane)
        self._charge(lane.flow, cost_ms)

    # -- decodes beyond their share ------------------------------------------------------------------------

    def _add_yielding(self, lanes: list[Lane]) -> None:
        """While they fit: the least served flow's first, batch last; of one flow, who waited longest."""
        time = self._shares.time
        for lane in sorted(lanes, key=lambda lane: (lane.is_batch, time(lane.flow), lane.flow)):
            cost_ms = lane.decodes_ms(self._model.cost)
            if cost_ms <= self._budget.left_ms:
                self._add_whole(lane, cost_ms)
            else:
                self._add_some(lane)

    def _add_some(self, lane: Lane) -> None:
        budget, cost = self._budget, self._model.cost
        ran: list[Row] = []
        skipped: list[Row] = []
        left_ms = budget.left_ms
        is_alone = not (self.step.whole or self.step.parts or self.step.chunks)
        while lane.rows:
            row = lane.rows.popleft()
            row_ms = cost.row_ms + cost.context_ms * lane.context_of(row)
            if row_ms <= left_ms or (is_alone and not ran) or budget.take_overdue(lane, row):
                ran.append(row)
                row.ran_us = self._now_us
                left_ms -= row_ms
                continue
            skipped.append(row)
            if left_ms < cost.row_ms:
                break
        lane.rows.extendleft(reversed(skipped))
        lane.rows.extend(ran)
        if ran:
            self.step.parts.append((lane, ran))
            self._charge(lane.flow, budget.left_ms - left_ms)

    # -- prompts -------------------------------------------------------------------------------------------

    def _add_prompts(self, lanes: Collection[Lane], *, admitting: bool = True) -> bool:
        """Chunks and admissions, one at a time, each for the flow whose turn it is. A flow may enter while it
        runs less than its part, or there is room below the row limit; rows that yield to these flows do not
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
            elif not (admitting and lane.waiting and self._may_enter(lane, competing)):
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

    def _may_enter(self, lane: Lane, competing: int) -> bool:
        return competing < self._row_limit or self._is_entitled(lane)

    def _is_entitled(self, lane: Lane) -> bool:
        """Whether it may enter whatever runs: it runs fewer rows than its part. One that is over-share must
        also have had no more time than some flow that runs more than its part: rows are not all alike."""
        shares = self._shares
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
        is_favoured = lane.flow not in self._shares.over and self._is_entitled(lane)
        if not self._memory.enter(lane, row, self._shares.over if is_favoured else frozenset()):
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
        self._budget.prefill += count
        self._planned.add(row.number)
        self.step.chunks.append((lane, row))
        cost_ms = self._model.cost.chunk_ms(count, start)
        self._budget.left_ms -= cost_ms
        if start + count > row.charged_tokens:  # what a preemption makes anew is charged to nobody
            fresh = max(start, row.charged_tokens)
            row.charged_tokens = start + count
            self._shares.charge(lane.flow, self._model.cost.chunk_ms(start + count - fresh, fresh))


def _only_turn(lane: Lane) -> Turn:
    """Of a flow that has no rival."""
    return Turn(False, False, False, 0, lane.flow)
