"""How much of a model's machine time goes to prompts that are computed again because their replica was lost.

Requests that were interrupted come first among those of their tenant, as long as that takes no more than a
quarter of the replicas' time: beyond it they wait their turn, so that a fleet whose replicas keep dying still
has time for requests that were never tried. Pure: the time is an argument; in machine milliseconds.
"""

PART = 0.25  # of the machine time of all replicas
BURST_MS = 2_000.0  # of each replica's, at once after a quiet time: nearly always one lost replica's requests


class FailoverBudget:
    """A bucket that may be in debt: what is taken when anything is left is taken whole, so that no prompt is
    too long for it."""

    def __init__(self, now_ms: float) -> None:
        self._spent_ms = 0.0  # that was not refilled yet
        self._at_ms = now_ms

    def take(self, cost_ms: float, replicas: int, now_ms: float) -> bool:
        """Whether a prompt that costs so much may come first. `replicas`: those that are left."""
        replicas = max(1, replicas)  # the next one is on its way, or nothing of this matters
        elapsed_ms = max(0.0, now_ms - self._at_ms)
        self._at_ms = max(self._at_ms, now_ms)
        self._spent_ms = max(0.0, self._spent_ms - PART * replicas * elapsed_ms)
        if self._spent_ms >= BURST_MS * replicas:
            return False
        self._spent_ms += cost_ms
        return True
