"""Who is gone for certain: absence from the dispatcher's view that lasted, while the view itself was fresh.

Pure: time is an argument, in seconds of one monotonic clock. Without a fresh view nobody is gone, so a lost
dispatcher, or one that has just started and knows nobody yet, declares no process dead.
"""

from collections.abc import Iterable

GONE_AFTER_S = 10.0
STALE_AFTER_S = 2.0


class Presence:
    """Incarnations of one kind of process, as seen in successive views of the fleet."""

    def __init__(self) -> None:
        self.present: frozenset[str] = frozenset()
        self._last_seen_s: dict[str, float] = {}
        self._observed_at_s = float("-inf")
        self._observing_since_s = float("-inf")

    def observe(self, present: Iterable[str], now_s: float) -> None:
        if now_s - self._observed_at_s > STALE_AFTER_S:
            self._observing_since_s = now_s
        self._observed_at_s = now_s
        self.present = frozenset(present)
        # Dropping the long absent changes no answer: the unknown count as absent since observing began.
        self._last_seen_s = {
            incarnation: seen_s
            for incarnation, seen_s in self._last_seen_s.items()
            if now_s - seen_s < GONE_AFTER_S
        } | dict.fromkeys(self.present, now_s)

    def is_gone(self, incarnation: str, now_s: float) -> bool:
        if now_s - self._observed_at_s > STALE_AFTER_S:
            return False
        absent_since_s = max(self._last_seen_s.get(incarnation, float("-inf")), self._observing_since_s)
        return now_s - absent_since_s >= GONE_AFTER_S
