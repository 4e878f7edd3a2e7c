"""How much is asked for: the recent rate, and the largest single amount of late.

An estimate for sizing leases, in floating point; nothing that must be conserved is counted here. Pure.
"""

import math

WINDOW_MS = 5_000


class DemandRate:
    """Exponentially weighted over `window_ms`. A clock that jumps back counts as standing still."""

    __slots__ = ("_at_ms", "_largest", "_largest_before", "_weight", "_window_from_ms", "window_ms")

    def __init__(self, now_ms: int, *, window_ms: int = WINDOW_MS) -> None:
        self.window_ms = window_ms
        self._weight = 0.0  # units, decayed
        self._at_ms = now_ms
        self._largest = self._largest_before = 0
        self._window_from_ms = now_ms

    def add(self, amount: int, now_ms: int) -> None:
        self._advance(now_ms)
        self._weight += amount
        self._largest = max(self._largest, amount)

    def per_second(self, now_ms: int) -> float:
        """Units."""
        self._advance(now_ms)
        return self._weight * 1000 / self.window_ms

    def largest(self, now_ms: int) -> int:
        """The largest amount of the last one to two windows; 0: there was none."""
        self._advance(now_ms)
        return max(self._largest, self._largest_before)

    def _advance(self, now_ms: int) -> None:
        passed_ms = now_ms - self._at_ms
        if passed_ms > 0:
            self._weight *= math.exp(-passed_ms / self.window_ms)
            self._at_ms = now_ms
        windows = (self._at_ms - self._window_from_ms) // self.window_ms
        if windows > 0:
            self._largest_before = self._largest if windows == 1 else 0
            self._largest = 0
            self._window_from_ms += windows * self.window_ms
