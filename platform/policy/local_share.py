"""What one gateway grants by itself while the quota store is down: its share of every limit.

The shares of all gateways make one limit, so the whole is granted about once. Amounts that are granted here
are also borrowed on the limit's lease (`policy.lease.Lease.borrow`): the store charges them when it is back.
Pure.
"""

from dataclasses import dataclass
from typing import Self

from policy.bucket import MINUTE_MS, Bucket
from policy.lease import LIFE_MS

MARGIN_PARTS = 100  # one part of a spend budget is never touched
TIGHT_PARTS = 2  # in TIGHT, one of so many parts of the rate


@dataclass(frozen=True, slots=True)
class Share:
    """`own` of `total`, exactly."""

    own: int
    total: int

    @classmethod
    def of(cls, own: int, total: int, gateways: int) -> Self:
        """By what was admitted lately, here and everywhere; nothing here: an equal part."""
        if own <= 0:
            return cls(1, max(1, gateways))
        return cls(own, max(own, total))

    def floor(self, amount: int) -> int:
        return amount * self.own // self.total

    def ceil(self, amount: int) -> int:
        return -(-amount * self.own // self.total)


class LocalShare:
    """Of one bucket. `burst`: units to begin with (`burst_units`)."""

    def __init__(self, cap: int, rate: int, share: Share, burst: int, now_ms: int) -> None:
        self.cap = cap
        self._room = max(1, burst, share.ceil(cap))
        self._rate, self._share = rate, share
        self._bucket = self._bucket_make(1, burst, now_ms)

    def tighten(self, now_ms: int) -> None:
        """From now on half of it."""
        self._bucket = self._bucket_make(TIGHT_PARTS, self._bucket.available(now_ms), now_ms)

    def has(self, amount: int, now_ms: int) -> bool:
        return amount <= self._bucket.available(now_ms)

    def take(self, amount: int, now_ms: int) -> bool:
        return self._bucket.take(amount, now_ms)

    def settle(self, delta: int, now_ms: int) -> None:
        """A reservation less what was used."""
        self._bucket.settle(delta, now_ms)

    def wait_ms(self, amount: int, now_ms: int) -> int | None:
        """None: not while the store is down."""
        return self._bucket.wait_ms(amount, now_ms)

    def _bucket_make(self, parts: int, available: int, now_ms: int) -> Bucket:
        period_ms = MINUTE_MS * self._share.total * parts
        return Bucket(
            self._room, self._rate * self._share.own, now_ms, period_ms=period_ms, available=available
        )


def burst_units(cap: int, rate: int, share: Share, *, left: int, store_left: int | None, age_ms: int) -> int:
    """What a local share begins with: the lease's `left`, already paid for, and this gateway's part of what
    the store must hold by now: what it had `age_ms` ago, refilled since. Unknown: it was not used, full."""
    held = cap if store_left is None else min(cap, store_left + age_ms * rate // MINUTE_MS)
    return min(cap, left + share.floor(max(0, held)))


def spend_while_down(
    budget: int, share: Share, *, left: int, store_left: int | None, age_ms: int, gateways: int
) -> int:
    """Micro-USD that may be spent: what is leased, and this gateway's share of the last known remainder less
    one percent of the budget. With other gateways beside this one a remainder older than a lease's life
    says nothing: they may have spent it."""
    is_known = store_left is not None and (gateways <= 1 or age_ms <= LIFE_MS)
    if store_left is None or not is_known:
        return left
    return left + share.floor(max(0, store_left - -(-budget // MARGIN_PARTS)))


def slots_while_down(limit: int, share: Share) -> int:
    """Concurrent requests; a gateway that takes part has at least one."""
    return min(limit, max(1, share.ceil(limit)))
