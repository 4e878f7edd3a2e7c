"""The part of machine time that batch gets for certain: credit that grows with all work, spent by batch.

Beyond it batch runs on what the others leave over. That is free: it spends no credit that batch does not
have, but for a moment's worth, so that reports which come late do not add up to more than the part.
"""

BATCH_PART = 0.1  # of machine time that batch has for certain while it wants some
STEP_PART = 0.25  # of a replica's step that batch is given at most of what it is owed
CREDIT_MOST_US = 1_000_000  # of each replica
DEBT_MOST_US = 100_000


class BatchFloor:
    """`part` of machine time; `quantum_us` of credit make batch due, who then is until it has none."""

    def __init__(self, part: float, quantum_us: int = 25_000) -> None:
        self._part = part
        self._quantum_us = quantum_us
        self._credit_us = 0.0
        self.is_due = False

    @property
    def credit_us(self) -> float:
        return self._credit_us

    def step_ms(self, step_ms: float) -> float:
        """What the next step of one replica, of `step_ms`, is to give batch in place of others."""
        return min(self._credit_us / 1000, STEP_PART * step_ms) if self.is_due else 0.0

    def stepped(self, batch_ms: float, others_ms: float, *, is_wanted: bool) -> None:
        """A step of one replica was planned. Its time is that of its rows and what it costs in common."""
        self.worked(1000 * others_ms, 1, is_batch=False, is_wanted=is_wanted)
        self.worked(1000 * batch_ms, 1, is_batch=True, is_wanted=is_wanted)

    def worked(self, cost_us: float, replicas: int, *, is_batch: bool, is_wanted: bool) -> None:
        """Machine time was given. `is_wanted`: batch has requests, waiting or running."""
        earned_us = self._part * cost_us if is_wanted else 0.0
        spent_us = cost_us if is_batch else 0.0
        credit_us = self._credit_us + earned_us - spent_us
        most = max(1, replicas)
        self._credit_us = min(max(credit_us, -DEBT_MOST_US * most), CREDIT_MOST_US * most)
        if self._credit_us <= 0:
            self.is_due = False
        elif self._credit_us >= self._quantum_us:
            self.is_due = True
