"""A token bucket that can be in debt: `cap` units at most, `rate` more every period, exact to the unit.

A balance is kept in parts of a unit: one part is what a rate of one unit a period gives in a millisecond, so
no refill is ever rounded. The store's script keeps the same numbers (they stay below 2^53). Pure: the time is
an argument. Not for leases: a gateway's share of a bucket is `policy.lease`.
"""

MINUTE_MS = 60_000


class Bucket:
    """Whole units; full at the start unless `available` says otherwise.

    The clock may jump. Backwards it gives nothing, and time that was counted is not counted again, but
    nobody waits longer than one fill for that; forwards it fills the bucket and no more.
    """

    __slots__ = ("_at_ms", "_parts", "cap", "period_ms", "rate")

    def __init__(
        self, cap: int, rate: int, now_ms: int, *, period_ms: int = MINUTE_MS, available: int | None = None
    ) -> None:
        if cap < 1 or rate < 0 or period_ms < 1:
            raise ValueError(f"no bucket: cap {cap}, {rate} units in {period_ms} ms")
        self.cap = cap
        self.rate = rate
        self.period_ms = period_ms
        self._parts = _clamp(cap if available is None else available, -cap, cap) * period_ms
        self._at_ms = now_ms

    def available(self, now_ms: int) -> int:
        """Whole units; negative: debt."""
        self._refill(now_ms)
        return self._parts // self.period_ms

    def take(self, amount: int, now_ms: int) -> bool:
        """All of it or nothing. In debt not even zero units are given."""
        if amount < 0:
            raise ValueError(f"{amount} units cannot be taken")
        self._refill(now_ms)
        parts = amount * self.period_ms
        if parts > self._parts:
            return False
        self._parts -= parts
        return True

    def settle(self, delta: int, now_ms: int) -> int:
        """Gives `delta` units back (what exceeds `cap` is lost, as a refill would be) or, negative, charges
        them. Units of debt beyond -cap are returned: they are not charged yet."""
        self._refill(now_ms)
        if delta >= 0:
            self._parts = min(self.cap * self.period_ms, self._parts + delta * self.period_ms)
            return 0
        room = (self._parts + self.cap * self.period_ms) // self.period_ms
        charged = min(-delta, room)
        self._parts -= charged * self.period_ms
        return -delta - charged

    def can_hold(self, amount: int) -> bool:
        """False: this amount can never be taken, however long one waits."""
        return amount <= self.cap

    def wait_ms(self, amount: int, now_ms: int) -> int | None:
        """Until `amount` can be taken if nobody else takes any; None: never."""
        self._refill(now_ms)
        missing = amount * self.period_ms - self._parts
        if not self.can_hold(amount) or (missing > 0 and self.rate == 0):
            return None
        if missing <= 0:
            return 0
        return self._at_ms - now_ms - (-missing // self.rate)

    def reset_ms(self, now_ms: int) -> int | None:
        """Until it is full; None: never."""
        return self.wait_ms(self.cap, now_ms)

    def _refill(self, now_ms: int) -> None:
        full = self.cap * self.period_ms
        if now_ms >= self._at_ms:
            self._parts = min(full, self._parts + (now_ms - self._at_ms) * self.rate)
            self._at_ms = now_ms
        elif self.rate > 0:
            fill_ms = -(-full // self.rate)
            self._at_ms = min(self._at_ms, now_ms + fill_ms)


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))
