"""Whether a queue stands: CoDel's signal (Nichols and Jacobson, RFC 8289), the least wait over an interval.

A burst makes some wait; when even the least wait of an interval exceeds the target, more comes than leaves.
Here the wait is what a request waited beyond what was expected when it was admitted: the guard is for the
case that the expectation is wrong.
"""

from math import inf


class Codel:
    def __init__(self, target_ms: float, interval_ms: float, now_ms: float) -> None:
        self._target_ms = target_ms
        self._interval_ms = interval_ms
        self._least_ms = inf
        self._until_ms = now_ms + interval_ms
        self.is_overloaded = False

    def left(self, excess_ms: float) -> None:
        """A request leaves the queue to run, having waited so much longer than expected."""
        self._least_ms = min(self._least_ms, excess_ms)

    def tick(self, now_ms: float, *, is_empty: bool) -> None:
        """`is_empty`: nothing waits now. An interval in which nothing left changes nothing."""
        if is_empty:
            self._least_ms = min(self._least_ms, 0.0)
        if now_ms < self._until_ms:
            return
        if self._least_ms < inf:
            self.is_overloaded = self._least_ms > self._target_ms
        self._least_ms = inf
        self._until_ms = now_ms + self._interval_ms
