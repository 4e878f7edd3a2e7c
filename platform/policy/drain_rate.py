"""How fast the fleet works: measured while something waits, for then it is what it can do.

What is done counts, not what is started: a fleet that has room takes in more than it can do for a while.
Kept per replica, so that it follows the fleet's size at once.
"""

from math import exp, inf

MEMORY_MS = 5_000.0
FIRST_PART = 0.8  # of a replica's machine time, until it was measured, and where that was long ago
LEAST_PART, MOST_PART = 0.25, 1.0  # where the costs are known: no estimate of work is off by more
LEAST = 1e-3


class DrainRate:
    """Machine seconds of estimated work per second and replica.

    Where costs are known it stays between a quarter and one: an empty fleet takes many requests at once, and
    one that is full of long ones none for a while, but neither says what comes after.
    """

    def __init__(self, now_ms: float) -> None:
        self.per_replica = FIRST_PART
        self._throughput = 0.0  # whether something waited or not
        self._done_us = 0
        self.since_ms = now_ms  # of the last tick
        self._ran_dry = True

    def done(self, work_us: int) -> None:
        """A prompt was computed, or an output produced."""
        self._done_us += work_us

    def ran_dry(self) -> None:
        """Nothing waits."""
        self._ran_dry = True

    def tick(self, now_ms: float, replicas: int, *, is_bounded: bool) -> None:
        """`is_bounded`: the work is in true machine time."""
        elapsed_ms = now_ms - self.since_ms
        if elapsed_ms <= 0:
            return
        sample = self._done_us / 1000 / elapsed_ms / max(1, replicas)
        factor = 1 - exp(-elapsed_ms / MEMORY_MS)
        if replicas:
            self._throughput += factor * (sample - self._throughput)
            if not self._ran_dry:
                self.per_replica += factor * (sample - self.per_replica)
            else:  # less than it can do says nothing, more does, unless it is a single burst
                self.per_replica += factor * max(0.0, FIRST_PART - self.per_replica)
                self.per_replica = max(self.per_replica, self._throughput)
        least, most = (LEAST_PART, MOST_PART) if is_bounded else (LEAST, inf)
        self.per_replica = min(max(self.per_replica, least), most)
        self._done_us, self.since_ms, self._ran_dry = 0, now_ms, False
