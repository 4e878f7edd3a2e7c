"""Micro-dollars of one UTC day or month: the worst case is held, what was not spent of it is free again.

Nothing is ever granted that the store did not set aside: a budget is not passed, whatever fails.
"""

from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.demand import Used
from gateway.quotas.recent import Recent
from gateway.quotas.store import Arg, unix_ms
from policy.lease import Lease
from policy.local_share import Share, spend_while_down
from policy.spend import Period
from tenants.contracts import QuotaLimit

_KEPT_AFTER_MS = 86_400_000  # what ends late still finds its counter
_FOLD_IDLE_MS = 60_000


class SpendAccount(Account):
    """`spent` is what the store keeps under this gateway's name; `base` comes from the ledger, for a store
    that does not know what was spent before."""

    keeps_grants = True

    def __init__(
        self, limit: QuotaLimit, key: bytes, lease: Lease, period: Period, bounds: QuotaBounds
    ) -> None:
        super().__init__(limit, key, lease)
        self.period = period
        self.spent = 0
        self.base: int | None = None
        self._reported = ""
        self._total = 0  # ever
        self._recent = Recent(int(bounds.recent_s * 1000), lease.heard_ms)
        self._folding = 0
        self._local_room = 0

    def actual(self, used: Used) -> int:
        return used.micro_usd

    def give(self, reserved: int, actual: int, now: int) -> None:
        self.spent += actual
        self._total += actual
        super().give(reserved, actual, now)
        if self.is_local:
            self._local_room += reserved - actual

    @property
    def is_over(self) -> bool:
        return not self.period.holds(unix_ms())

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self.spent

    def reserve_arguments(self, want: int, need: int) -> list[Arg]:
        self._reported = self._standing
        return ["spend", self.lease.cap, self._keep_ms, want, need, self._reported]

    def settle_arguments(self, delta: int, away_ms: int, now: int) -> list[Arg]:
        self._reported = self._standing
        other = "" if self.base is None else str(self.base)
        if not other and self._is_foldable(now):
            self._folding, other = self.spent, "fold"
        return ["spend", self.lease.cap, self._keep_ms, self._reported, other]

    def granted(self, amount: int, left: int, given: int, gateways: int, asked_ms: int) -> None:
        self.lease.granted(amount, left, asked_ms)

    def settled(self, left: int | None, asked_ms: int) -> None:
        super().settled(left, asked_ms)
        folded, self._folding = self._folding, 0
        if left is not None:
            self.base = None
            self.spent -= folded
            if folded:
                self._reported = self._standing

    def is_due(self, now: int) -> bool:
        """The sum changes nothing for others; how much of it is spent matters when this gateway dies."""
        return self._reported != self._standing or self._is_foldable(now)

    def sample(self, now: int) -> None:
        self._recent.sample(self._total, now)

    def lost(self) -> None:
        """The ledger has all but the most recent: so much is reported again."""
        self.spent = min(self.spent, self._recent.growth(self._total))
        self._reported = ""

    def wait_ms(self, store_wait_ms: int, now: int) -> int:
        return max(0, self.period.ends_ms - unix_ms())

    @property
    def _standing(self) -> str:
        return f"{self.spent}:{self.lease.left + self.lease.reserved + self.aside}"

    @property
    def _keep_ms(self) -> int:
        return max(0, self.period.ends_ms - unix_ms()) + _KEPT_AFTER_MS

    def _is_foldable(self, now: int) -> bool:
        """Nothing is held and nothing was asked lately: the store may forget who spent it."""
        if not self.spent or self.lease.reserved or self.lease.left:
            return False
        return self.is_ending or self.is_over or now - self.lease.used_ms >= _FOLD_IDLE_MS

    # -- while the store is down --------------------------------------------------------------------------

    def local_begin(self, gateways: int, now: int) -> None:
        """What is leased; and, of the only gateway, what the store had left: nobody else can spend that."""
        lease = self.lease
        self._local_room = spend_while_down(
            lease.cap,
            Share.of(0, 0, gateways),
            left=lease.left,
            store_left=lease.store_left if gateways == 1 else None,
            age_ms=now - lease.heard_ms,
            gateways=gateways,
        )
        super().local_begin(gateways, now)

    def local_has(self, amount: int, now: int) -> bool:
        return amount <= self._local_room

    def local_take(self, amount: int, now: int) -> None:
        super().local_take(amount, now)
        self._local_room -= amount

    def local_wait_ms(self, amount: int, now: int) -> int | None:
        return None
