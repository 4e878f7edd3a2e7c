"""The running rows: who gets a slot and blocks, and who gives way when there are none. No torch here."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpuworker.engine.flows import Flows, Shares
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.preemption import Recovery
from gpuworker.engine.sequence import Sequence, Status
from policy.flow import BATCH, Flow


class Standing(NamedTuple):
    running: Counter[Flow]  # rows
    most_us: int  # time that a flow has had which runs more than its part; -1: none does
    batch_decodes: int  # rows of batch whose prompts are computed


class Batch:
    """Who composes a step sets `shares` and fills `planned` (the rows it holds)."""

    def __init__(self, kv: KVManager, flows: Flows, recovery: Recovery, *, max_rows: int) -> None:
        self.kv = kv
        self.rows: list[Sequence] = []  # in order of admission
        self.shares = Shares(frozenset(), {})
        self.planned: set[SequenceKey] = set()
        self.preemptions = 0  # of either kind
        self.swaps = 0
        self._flows = flows
        self._recovery = recovery
        self._free_slots = list(range(max_rows - 1, -1, -1))

    @property
    def active(self) -> list[Sequence]:
        return [row for row in self.rows if not row.held]

    def enter(self, sequence: Sequence, now_ms: float) -> bool:
        """A waiting row begins to run, if the whole of it fits and running rows keep room to grow."""
        if not self._admit(sequence) and not self._make_room_to_enter(sequence):
            return False
        self._flows.take(sequence)
        sequence.status = Status.RUNNING
        sequence.slot = self._free_slots.pop()
        sequence.table_told = 0
        if sequence.started_ms is None:
            sequence.started_ms = now_ms
            found = min(sequence.num_computed, sequence.prompt_len)
            elsewhere = sequence.computed_elsewhere
            sequence.cached_tokens = found - max(min(found, elsewhere.stop) - elsewhere.start, 0)
        self.rows.append(sequence)
        return True

    def grow(self, sequence: Sequence, count: int) -> bool:
        """Makes room for the next `count` ids. False when the row itself had to give way."""
        while self.kv.extension(sequence, count) > self.kv.pool.free_blocks:
            victim = self._victims(row for row in self.rows if row.key not in self.planned)[0]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def leave(self, sequence: Sequence) -> None:
        """It ended, or gives way."""
        self.rows.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def _admit(self, sequence: Sequence) -> bool:
        return bool(self._free_slots) and self.kv.admit(sequence, self._watermark())

    def _watermark(self, leaving: Collection[Sequence] = ()) -> int:
        """Blocks that stay free at an admission, else the next decodes preempt the newcomer at once."""
        active = len(self.active) - sum(not row.held for row in leaving)
        return max(2, self.kv.pool.blocks // 64, active) if active else 0

    def standing(self) -> Standing:
        """Of the moment: changes with every admission and charge."""
        active = self.active
        running = Counter(row.flow for row in active)
        parts = self.shares.parts
        ahead = (self._flows.time(flow) for flow, rows in running.items() if rows > parts.get(flow, 0))
        batch_decodes = sum(row.flow.klass == BATCH and row.remaining == 1 for row in active)
        return Standing(running, max(ahead, default=-1), batch_decodes)

    def is_entitled(self, flow: Flow, standing: Standing) -> bool:
        """Whether it may enter whatever runs: it runs fewer rows than its part. One that is over-share must
        also have had no more time than some flow that runs more than its part: rows are not all alike. Batch
        that is owed time may while few of its rows decode."""
        if flow.klass == BATCH and standing.batch_decodes < self.shares.batch_rows:
            return True
        if standing.running[flow] >= self.shares.parts.get(flow, 0):
            return False
        return flow not in self.shares.over or self._flows.time(flow) <= standing.most_us

    def _make_room_to_enter(self, sequence: Sequence) -> bool:
        """Held rows leave for anybody; for a flow that runs less than its part, so do others'."""
        yielding = (
            self._yielding_to(sequence.flow) if self.is_entitled(sequence.flow, self.standing()) else set()
        )
        victims = self._victims(
            row for row in self.rows if row.key not in self.planned and (row.held or row.key in yielding)
        )
        if not self._would_fit(sequence, victims):
            return False
        for victim in victims:
            self._preempt(victim)
            if self._admit(sequence):
                return True
        return False

    def _yielding_to(self, flow: Flow) -> set[SequenceKey]:
        """Rows of over-share flows: for one that is not over-share itself all of them, otherwise the newest
        beyond their part and one more, so that parts which waver do not send rows to and fro."""
        over, parts = self.shares.over, self.shares.parts
        rows = [row for row in self.active if row.flow in over and row.flow != flow]
        if flow.klass == BATCH and flow in over:  # what batch is owed is no one batch flow's
            rows = [row for row in rows if row.flow.klass != BATCH]
        if flow not in over:
            return {row.key for row in rows}
        stays = Counter[Flow]()
        yielding = set()
        for row in rows:  # in order of admission
            stays[row.flow] += 1
            if stays[row.flow] > parts.get(row.flow, 0) + 1:
                yielding.add(row.key)
        return yielding

    def _would_fit(self, sequence: Sequence, victims: Collection[Sequence]) -> bool:
        short = self.kv.needed(sequence) + self._watermark(victims) - self.kv.pool.free_blocks
        return short <= 0 or (bool(victims) and self.kv.would_free(victims, short))

    def _victims(self, rows: Iterable[Sequence]) -> list[Sequence]:
        """Of rows in the order of admission: held ones first, then batch, then those of the most over-served
        flow, the newest first."""
        newest_first = list(rows)[::-1]
        time = self._flows.time
        return sorted(
            newest_first,
            key=lambda row: (row.held, row.flow in self.shares.over, row.flow.klass == BATCH, time(row.flow)),
            reverse=True,
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Its ids stay, and it is first in line."""
        if self._recovery.prefers_swap(sequence.num_computed) and self.kv.can_swap(sequence):
            self.kv.swap_out(sequence)
            self.swaps += 1
        else:
            self.kv.drop(sequence)
        self.leave(sequence)
        sequence.status = Status.WAITING
        self._flows.put_first(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
