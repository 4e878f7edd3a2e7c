"""What refused clients of one bucket were told: whoever is told later is told to come after them.

Without this all of them come back at the moment when there is room for one. Nothing is kept for anybody: who
asks meanwhile may be served before. Pure: the time is an argument.
"""

from collections import deque

from policy.bucket import MINUTE_MS

MOST = 1_024  # remembered; those told first are forgotten first
HORIZON_MS = 60_000  # nobody is told to come later than that


class Promises:
    """Of one limit. Amounts are whole units."""

    __slots__ = ("_told", "_units")

    def __init__(self) -> None:
        self._told: deque[tuple[int, int]] = deque()  # when, and how much; ascending
        self._units = 0

    def wait_ms(self, amount: int, wait_ms: int, rate_per_minute: int, now_ms: int) -> int:
        """How long to tell a client that asked for `amount` to wait, where it would be there in `wait_ms` if
        nobody else took any. It is remembered, unless it is further off than may be told."""
        while self._told and (self._told[0][0] <= now_ms or len(self._told) >= MOST):
            self._units -= self._told.popleft()[1]
        if rate_per_minute <= 0:
            return wait_ms
        wait_ms += -(-self._units * MINUTE_MS // rate_per_minute)
        if wait_ms <= HORIZON_MS:
            due_ms = max(now_ms + wait_ms, self._told[-1][0] if self._told else 0)
            self._told.append((due_ms, amount))
            self._units += amount
        return wait_ms
