"""A gateway's local part of one limit, so that the common path asks no store.

Units were taken from the store when they were granted; what is not spent goes back. Nothing is created or
lost here: granted = left + reserved + used + returning, after any history. Pure: no clock, no I/O; the caller
carries `returning` to the store (`policy.lease_book`) and reports what the store said.
"""

from policy.bucket import MINUTE_MS
from policy.demand_rate import DemandRate

AHEAD = 1.5  # seconds of the recent rate that a lease holds
PARTS_OF_CAP = 5  # all gateways' leases together: a fifth of the limit
LOW_WATER = 0.4  # of the lease's size: ask for more
LIFE_MS = 2_000
ASK_AGAIN_MS = 250  # how long it is believed that the store has too little


class Lease:
    """Of one limit with room for `cap` units, which refills at `rate_per_minute` (0: it does not). Amounts
    are whole units, 0 or more.

    `ahead_s`: seconds of the recent rate that it holds, for `life_ms` after the store granted any.
    """

    __slots__ = (
        "_ask_again_ms",
        "_demand",
        "_refused_amount",
        "_refused_until_ms",
        "_until_ms",
        "ahead_s",
        "cap",
        "heard_ms",
        "is_lowered",
        "left",
        "life_ms",
        "rate_per_minute",
        "reserved",
        "returning",
        "size",
        "store_left",
        "used",
        "used_ms",
    )

    def __init__(
        self,
        cap: int,
        now_ms: int,
        *,
        rate_per_minute: int = 0,
        ahead_s: float = AHEAD,
        life_ms: int = LIFE_MS,
    ) -> None:
        self.cap = cap
        self.rate_per_minute = rate_per_minute
        self.ahead_s = ahead_s
        self.life_ms = life_ms
        self.size = 0  # what the lease should hold; 0: none, every request asks the store
        self.left = 0  # granted, free
        self.reserved = 0  # taken or borrowed, not settled
        self.used = 0  # settled, ever
        self.returning = 0  # to be told to the store: units that go back, negative: debt
        self.is_lowered = False  # what returns was granted under a higher limit: nobody may have it
        self.used_ms = now_ms  # last time anything was taken
        self.store_left: int | None = None  # in the store when it last answered, without this lease
        self.heard_ms = now_ms
        self._demand = DemandRate(now_ms)
        self._until_ms = now_ms
        self._refused_amount = 0
        self._refused_until_ms = self._ask_again_ms = now_ms

    # -- spending --------------------------------------------------------------------------------------------

    def has(self, amount: int, now_ms: int) -> bool:
        return amount <= self.left and now_ms < self._until_ms

    def take(self, amount: int, now_ms: int) -> bool:
        """All of it or nothing."""
        if not self.has(amount, now_ms):
            return False
        self.left -= amount
        self._use(amount, now_ms)
        return True

    def borrow(self, amount: int, now_ms: int) -> None:
        """Taken without a lease: a debt that the next settlement pays."""
        self.returning -= amount
        self._use(amount, now_ms)

    def settle(self, reserved: int, used: int, now_ms: int) -> None:
        """Ends a reservation of `reserved` units of which `used` were really used. What the lease has no need
        for goes back to the store; more than was reserved comes from the lease, and beyond it is a debt."""
        self.reserved -= reserved
        self.used += used
        delta = reserved - used
        room = max(0, self.size - self.left) if now_ms < self._until_ms else 0
        kept = min(delta, room) if delta >= 0 else -min(-delta, self.left)
        self.left += kept
        self.returning += delta - kept

    # -- what the store said ---------------------------------------------------------------------------------

    def granted(self, amount: int, store_left: int, now_ms: int) -> None:
        """`now_ms`: when the store was asked, so that a slow answer does not lengthen a lease's life."""
        self.expire(now_ms)
        self.left += amount
        self._until_ms = max(self._until_ms, now_ms + self.life_ms)
        self.heard(store_left, now_ms)

    def heard(self, store_left: int, now_ms: int) -> None:
        """`store_left`: what the store holds, without this lease; negative: debt. More than its last refusal
        lets expect ends that refusal."""
        self.store_left, self.heard_ms = store_left, now_ms
        if self.refused_ms(store_left, now_ms) > 0:
            self._ask_again_ms = now_ms

    def refused(self, amount: int, wait_ms: int, now_ms: int) -> None:
        """The store has no room for `amount` before `wait_ms`."""
        self._refused_amount = amount
        self._refused_until_ms = now_ms + wait_ms
        self._ask_again_ms = now_ms + ASK_AGAIN_MS

    def refused_ms(self, amount: int, now_ms: int) -> int:
        """How long `amount` has to wait by the store's last refusal, of whatever amount; 0: ask the store."""
        more = amount - self._refused_amount
        if now_ms >= self._ask_again_ms or (more < 0 and self.rate_per_minute == 0):
            return 0
        more_ms = -(-more * MINUTE_MS // self.rate_per_minute) if self.rate_per_minute else 0
        return max(0, self._refused_until_ms + more_ms - now_ms)

    # -- size and life ---------------------------------------------------------------------------------------

    def resize(self, gateways: int, now_ms: int) -> int:
        """What the lease should hold: `ahead_s` of demand, room for the largest recent amount, and never more
        than this gateway's part of a fifth of the limit. A limit too small for that gets no lease: 0."""
        most = self.cap // (PARTS_OF_CAP * max(1, gateways))
        largest = self._demand.largest(now_ms)
        wanted = max(largest, int(self.ahead_s * self._demand.per_second(now_ms)))
        self.size = 0 if largest > most else min(wanted, most)
        return self.size

    def refill_amount(self, gateways: int, now_ms: int) -> int:
        """What to ask the store for ahead of need; 0: nothing, or nothing that the store would have: under
        overload what it has is for requests that wait."""
        size = self.resize(gateways, now_ms)
        self.expire(now_ms)
        amount = size - self.left if self.left < LOW_WATER * size else 0
        return 0 if self._is_known_short(amount, now_ms) else amount

    def remaining(self) -> int:
        """Of the limit, as far as this gateway knows: what the store had and what the lease holds."""
        known = self.cap if self.store_left is None else self.store_left + self.left + self.returning
        return max(0, min(self.cap, known))

    def is_empty(self) -> bool:
        """Nothing would be lost with it: it may be forgotten."""
        return not (self.left or self.reserved or self.returning)

    def expire(self, now_ms: int) -> None:
        """What is unspent of a lease that is over goes back."""
        if now_ms >= self._until_ms:
            self.surrender()

    def surrender(self) -> None:
        """All that is unspent goes back."""
        self.returning += self.left
        self.left = 0

    def lower(self) -> None:
        """The limit is lower from now on: what it held of the old one goes back before any more is given."""
        self.surrender()
        self.is_lowered = self.returning > 0

    def returned(self) -> None:
        """What was returning is told to the store."""
        self.returning, self.is_lowered = 0, False

    def forget_grants(self) -> None:
        """The store lost its data, and with it what it had granted; debts stand. Whether what is reserved is
        charged anew is the caller's to say."""
        self.left = 0
        self.returning = min(0, self.returning)
        self.store_left = None

    def _is_known_short(self, amount: int, now_ms: int) -> bool:
        age_ms = now_ms - self.heard_ms
        if self.store_left is None or age_ms >= ASK_AGAIN_MS:
            return False
        return self.store_left + age_ms * self.rate_per_minute // MINUTE_MS < amount

    def _use(self, amount: int, now_ms: int) -> None:
        self.reserved += amount
        self.used_ms = now_ms
        self._demand.add(amount, now_ms)
