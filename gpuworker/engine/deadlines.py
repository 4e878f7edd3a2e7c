"""Which rows expire next, without looking at all of them. No torch here."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.sequence import Sequence

MIN_SWEPT = 64


class Deadlines:
    """`rows` are those that have not ended; others are forgotten before they are two thirds of all."""

    def __init__(self, rows: Mapping[SequenceKey, Sequence]) -> None:
        self._rows = rows
        self._heap: list[tuple[float, SequenceKey]] = []

    def add(self, sequence: Sequence) -> None:
        if len(self._heap) > 2 * len(self._rows) + MIN_SWEPT:
            self._heap = [entry for entry in self._heap if self._is_open(entry)]
            heapify(self._heap)
        heappush(self._heap, (sequence.deadline_ms, sequence.key))

    @property
    def next_ms(self) -> float | None:
        while self._heap and not self._is_open(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_expired(self, now_ms: float) -> list[SequenceKey]:
        """Rows whose deadline has come, each once."""
        expired = []
        while (next_ms := self.next_ms) is not None and next_ms <= now_ms:
            expired.append(heappop(self._heap)[1])
        return expired

    def _is_open(self, entry: tuple[float, SequenceKey]) -> bool:
        deadline_ms, key = entry
        row = self._rows.get(key)  # a key may come again, for another request
        return row is not None and row.deadline_ms == deadline_ms
