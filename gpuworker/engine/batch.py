"""The running rows: who gets a slot and blocks, and who gives way when there are none. No torch here."""

from collections.abc import Collection, Iterable

from gpuworker.engine.flows import Flows
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.preemption import Recovery
from gpuworker.engine.sequence import Flow, Sequence, Status


class Batch:
    """`over` (flows beyond their share) and `planned` (rows that a step under construction holds) are the
    scheduler's: it sets the one and fills the other."""

    def __init__(self, kv: KVManager, flows: Flows, recovery: Recovery, *, max_rows: int) -> None:
        self.kv = kv
        self.rows: list[Sequence] = []  # in order of admission
        self.over: frozenset[Flow] = frozenset()
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
            sequence.cached_tokens = max(found - sequence.computed_elsewhere, 0)
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

    def _watermark(self) -> int:
        """Blocks that stay free at an admission, else the next decodes preempt the newcomer at once."""
        active = len(self.active)
        return max(2, self.kv.pool.blocks // 64, active) if active else 0

    def _make_room_to_enter(self, sequence: Sequence) -> bool:
        """Held rows leave for anybody, rows of over-share flows for those within their share."""
        yields = sequence.flow in self.over
        victims = self._victims(
            row
            for row in self.rows
            if row.key not in self.planned and (row.held or (row.flow in self.over and not yields))
        )
        if not self._would_fit(sequence, victims):
            return False
        for victim in victims:
            self._preempt(victim)
            if self._admit(sequence):
                return True
        return False

    def _would_fit(self, sequence: Sequence, victims: Collection[Sequence]) -> bool:
        reclaimed = sum(self.kv.exclusive_blocks(row) for row in victims)
        return self.kv.needed(sequence) + self._watermark() <= self.kv.pool.free_blocks + reclaimed

    def _victims(self, rows: Iterable[Sequence]) -> list[Sequence]:
        """Held rows first, then those of the most over-served flow, the newest first."""
        newest_first = sorted(rows, key=self.rows.index, reverse=True)
        return sorted(
            newest_first,
            key=lambda row: (row.held, row.flow in self.over, self._flows.time(row.flow)),
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
