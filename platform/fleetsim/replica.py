"""One replica: rows that were placed on it, and its steps, one after another, on the simulation's clock.

Tells of a step's results in `StepEnd`. It makes no decision of its own beyond the step: what waits, waits in
the fleet's queue.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fleetsim.replica_model import ReplicaModel
from fleetsim.rows import Lane, Row
from fleetsim.step import Step, StepComposition
from fleetsim.step_memory import StepMemory, Tally
from fleetsim.step_shares import StepShares, lane_weight
from policy.flow import Flow

Gaps = Callable[[Flow, int, int], None]  # of a flow: microseconds between two tokens, of so many rows


@dataclass(slots=True)
class StepEnd:
    prefilled: list[Row] = field(default_factory=list)  # first tokens, or the first after a preemption
    ended: list[Row] = field(default_factory=list)
    tokens: int = 0  # of output


class Replica:
    def __init__(self, key: str, model: ReplicaModel, gaps: Gaps, *, pausing: bool = True) -> None:
        self.key, self.model = key, model
        self.is_busy = False
        self.busy_us = 0
        self.prefill_tokens = 0  # computed since the start
        self.output_tokens = 0
        self.shares = StepShares(pausing=pausing)
        self._lanes: dict[Flow, Lane] = {}
        self.memory = StepMemory(self._lanes, self.shares, model)
        self._gaps = gaps
        self._demand_version = 0
        self._step = Step()

    @property
    def rows(self) -> int:
        return sum(lane.demand for lane in self._lanes.values())

    @property
    def row_limit(self) -> int:
        return self._row_limit(self.memory.tally())

    @property
    def free_tokens(self) -> int:
        """Of KV."""
        return self.memory.free_tokens(self.memory.tally())

    @property
    def has_work(self) -> bool:
        return bool(self._lanes)

    def place(self, row: Row, now_us: int) -> None:
        lane = self._lanes.get(row.flow)
        weight = lane_weight(row.flow, row.weight)
        if lane is None:
            lane = self._lanes[row.flow] = Lane(row.flow, weight)
        lane.weight = weight
        self.shares.activate(row.flow, weight)
        row.left_tokens = row.need_tokens - row.cached_tokens
        row.charged_tokens = max(row.charged_tokens, row.cached_tokens)
        row.ran_us = now_us
        lane.waiting.append(row)
        self.memory.pending_tokens += row.left_tokens
        self._demand_version += 1

    def step_begin(self, now_us: int) -> int:
        """How long the step will last, in microseconds. There must be work."""
        lanes, memory = self._lanes, self.memory
        tally = memory.make_room()
        row_limit = self._row_limit(tally)
        self.shares.update(lanes, self._demand_version, row_limit)
        composition = StepComposition(
            lanes,
            self.shares,
            memory,
            self.model,
            decoding=tally.decoding > 0,
            row_limit=row_limit,
            now_us=now_us,
        )
        self._step = composition.compose()
        self.prefill_tokens += self._step.prefill_tokens
        self.is_busy = True
        duration_us = max(1, round(1000 * self._step.cost_ms))
        self.busy_us += duration_us
        return duration_us

    def step_end(self, now_us: int) -> StepEnd:
        self.is_busy = False
        end = StepEnd()
        for lane in self._step.whole:
            end.tokens += len(lane.rows)
            self._gaps_of(lane, now_us)
            lane.last_us = now_us
            end.ended += lane.ran_all()
        for lane, rows in self._step.parts:
            end.tokens += len(rows)
            for row in rows:
                self._gaps(lane.flow, now_us - max(row.last_us, lane.last_us), 1)
                row.last_us = now_us
            end.ended += lane.ran(rows)
        for lane, row in self._step.chunks:
            if not row.left_tokens:
                end.tokens += 1
                self._prompt_end(lane, row, now_us, end)
        for row in end.ended:
            self._demand_version += 1
            lane_of_row = self._lanes.get(row.flow)  # None: another of its rows ended in this step
            if lane_of_row and not lane_of_row.demand:
                del self._lanes[row.flow]
                self.shares.deactivate(row.flow)
        self.output_tokens += end.tokens
        return end

    def _row_limit(self, tally: Tally) -> int:
        return self.model.row_limit(tally.context / max(tally.rows, 1))

    def _prompt_end(self, lane: Lane, row: Row, now_us: int, end: StepEnd) -> None:
        lane.begun.remove(row)
        lane.prompts_context -= row.need_tokens
        if row.emitted:
            self._gaps(lane.flow, now_us - row.last_us, 1)
        row.emitted += 1
        end.prefilled.append(row)
        if row.emitted == row.output_tokens:
            end.ended.append(row)
        else:
            lane.join(row, now_us)
        self.memory.computed(row)

    def _gaps_of(self, lane: Lane, now_us: int) -> None:
        if not lane.is_ragged:
            self._gaps(lane.flow, now_us - lane.last_us, len(lane.rows))
            return
        for row in lane.rows:
            self._gaps(lane.flow, now_us - max(row.last_us, lane.last_us), 1)

    @property
    def emitted_alive(self) -> dict[int, int]:
        """Output tokens so far, by the numbers of the rows that have not ended."""
        emitted: dict[int, int] = {}
        for lane in self._lanes.values():
            for row in (*lane.waiting, *lane.begun):
                emitted[row.number] = row.emitted
            for row in lane.rows:
                emitted[row.number] = row.output_tokens - (row.end_tick - lane.tick)
        return emitted

    def lost(self) -> list[Row]:
        """All rows, by flow and age: nobody computes for them any more. They know what they have emitted."""
        lost: list[Row] = []
        for flow in sorted(self._lanes):
            lane = self._lanes[flow]
            for row in [*lane.rows]:
                lane.leave(row)
                lost.append(row)
            lost += [*lane.begun, *lane.waiting]
        self._lanes.clear()
        return lost
