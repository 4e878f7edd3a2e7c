"""Tokens and requests a minute: a bucket in the store, a lease of it here."""

from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.demand import Used
from gateway.quotas.recent import Recent
from gateway.quotas.store import Arg
from policy.bucket import MINUTE_MS
from policy.demand_rate import DemandRate
from policy.lease import Lease
from policy.local_share import LocalShare, Share, burst_units
from tenants.contracts import TOKENS_PER_MINUTE, QuotaLimit

_GIVEN_WINDOW_MS = 10_000  # as in once.lua
_SHARE_PARTS = 1_000


class BucketAccount(Account):
    def __init__(self, limit: QuotaLimit, key: bytes, lease: Lease, bounds: QuotaBounds) -> None:
        super().__init__(limit, key, lease)
        self._given = DemandRate(lease.heard_ms, window_ms=_GIVEN_WINDOW_MS)
        self._local: LocalShare | None = None
        self._recent = Recent(int(bounds.recent_s * 1000), lease.heard_ms)

    def actual(self, used: Used) -> int:
        return used.tokens if self.limit.name == TOKENS_PER_MINUTE else used.requests

    def reserve_arguments(self, want: int, need: int) -> list[Arg]:
        return ["bucket", self.lease.cap, self.rate, want, need, ""]

    def settle_arguments(self, delta: int, away_ms: int, now: int) -> list[Arg]:
        return ["bucket", self.lease.cap, self.rate, delta, away_ms]

    def granted(self, amount: int, left: int, given: int, gateways: int, asked_ms: int) -> None:
        self.lease.granted(amount, left, asked_ms)
        self._given.add(amount, asked_ms)
        own = self._given.per_second(asked_ms) * _GIVEN_WINDOW_MS / 1000
        self.share = Share.of(int(own * _SHARE_PARTS), given * _SHARE_PARTS, gateways)

    @property
    def rate(self) -> int:
        """A minute."""
        return max(1, self.limit.limit)

    def sample(self, now: int) -> None:
        self._recent.sample(self.lease.used + self.lease.reserved, now)

    def lost(self) -> None:
        """A new bucket is full: what was used lately is charged again."""
        lately = self._recent.growth(self.lease.used + self.lease.reserved)
        self.lease.returning = min(self.lease.returning, -lately)  # debts that stand are part of it

    def reset_ms(self, remaining: int) -> int:
        """Until it is full."""
        return -(-(self.lease.cap - remaining) * MINUTE_MS // self.rate)

    # -- while the store is down --------------------------------------------------------------------------

    def local_begin(self, gateways: int, now: int) -> None:
        lease, rate = self.lease, self.rate
        if lease.store_left is None:
            self.share = Share.of(0, 0, gateways)
        age_ms = now - lease.heard_ms
        burst = burst_units(
            lease.cap, rate, self.share, left=lease.left, store_left=lease.store_left, age_ms=age_ms
        )
        self._local = LocalShare(lease.cap, rate, self.share, burst, now)
        super().local_begin(gateways, now)

    def local_has(self, amount: int, now: int) -> bool:
        return self._local is not None and self._local.has(amount, now)

    def local_take(self, amount: int, now: int) -> None:
        super().local_take(amount, now)
        if self._local is not None:
            self._local.take(amount, now)

    def local_wait_ms(self, amount: int, now: int) -> int | None:
        return None if self._local is None else self._local.wait_ms(amount, now)

    def local_tighten(self, now: int) -> None:
        if self._local is not None:
            self._local.tighten(now)

    def local_end(self) -> None:
        super().local_end()
        self._local = None

    def take_more(self, amount: int, now: int) -> None:
        super().take_more(amount, now)
        if self._local is not None:  # `give` settles all that was reserved: this, too
            self._local.settle(-amount, now)

    def give(self, reserved: int, actual: int, now: int) -> None:
        super().give(reserved, actual, now)
        if self._local is not None:
            self._local.settle(reserved - actual, now)
