"""Durations that are too many to keep: counted by tenths of a millisecond."""

from collections import Counter
from math import ceil

from fleetsim.report.result import Percentiles

TENTH_US = 100


class Histogram:
    def __init__(self) -> None:
        self._tenths: Counter[int] = Counter()

    def add(self, duration_us: int, count: int = 1) -> None:
        self._tenths[duration_us // TENTH_US] += count

    def percentiles(self) -> Percentiles:
        """In milliseconds, each at most a tenth too small."""
        total = sum(self._tenths.values())
        if not total:
            return Percentiles(0, 0.0, 0.0, 0.0, 0.0)
        ranks = [ceil(part * total / 100) for part in (50, 95, 99, 100)]
        values, seen = [], 0
        for tenth in sorted(self._tenths):
            seen += self._tenths[tenth]
            while ranks and seen >= ranks[0]:
                values.append(tenth / 10)
                del ranks[0]
        return Percentiles(total, *values)

    def share_above(self, duration_ms: float) -> float:
        total = sum(self._tenths.values())
        above = sum(count for tenth, count in self._tenths.items() if tenth / 10 > duration_ms)
        return above / total if total else 0.0
