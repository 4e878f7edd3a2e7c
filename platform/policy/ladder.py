"""The degradation level of a model version: what is given up, in which order, while requests wait too long.

1 batch to its floor, 2 over-share tenants to their guaranteed rate, 3 shorter outputs, 4 the smaller model
for who accepts it, 5 a batch job for who accepts that. Only decided here; the gateway does 3 and 4.
"""

from policy.waiting import LevelChange

# Pressure above which each level is entered: wait as a part of the deadline.
ENTER = (0.3, 0.5, 0.7, 0.85, 1.0)
ENTER_MS, LEAVE_MS = 5_000.0, 60_000.0  # for so long above; for so long below half of it


class Ladder:
    def __init__(self) -> None:
        self.level = 0
        self._above_ms: list[float | None] = [None] * len(ENTER)  # since when
        self._below_ms: list[float | None] = [None] * len(ENTER)
        self._entered = [False] * len(ENTER)

    def update(self, pressure: float, wait_ms: float, now_ms: float) -> LevelChange | None:
        for step, threshold in enumerate(ENTER):
            self._above_ms[step] = _since(self._above_ms[step], now_ms, pressure > threshold)
            self._below_ms[step] = _since(self._below_ms[step], now_ms, pressure < threshold / 2)
            if _lasted(self._above_ms[step], now_ms, ENTER_MS):
                self._entered[step] = True
            elif _lasted(self._below_ms[step], now_ms, LEAVE_MS):
                self._entered[step] = False
        before, self.level = (
            self.level,
            max((n for n, is_in in enumerate(self._entered, 1) if is_in), default=0),
        )
        if self.level == before:
            return None
        return LevelChange(now_ms, before, self.level, pressure, wait_ms)


def _since(known_ms: float | None, now_ms: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now_ms if known_ms is None else known_ms


def _lasted(since_ms: float | None, now_ms: float, duration_ms: float) -> bool:
    return since_ms is not None and now_ms - since_ms >= duration_ms
