"""Concurrent requests: numbered slots that the store lends for a while: none is lost with a gateway."""

from collections import deque

from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.demand import Used
from gateway.quotas.store import Arg
from policy.demand_rate import DemandRate
from policy.lease import Lease
from policy.local_share import Share, slots_while_down
from tenants.contracts import QuotaLimit

_USUAL_WAIT_MS = 1_000


class SlotAccount(Account):
    """Which request has which slot does not matter: there are as many numbers as the lease has left and
    requests hold."""

    def __init__(self, limit: QuotaLimit, key: bytes, lease: Lease, bounds: QuotaBounds) -> None:
        super().__init__(limit, key, lease)
        self._numbers: deque[int] = deque()
        self._next = 1
        self._asked_first = 1
        self._ttl_ms = int(bounds.slot_ttl_s * 1000)
        self._renew_ms = int(bounds.slot_renew_s * 1000)
        self._renewed_ms = lease.heard_ms
        self._ended = DemandRate(lease.heard_ms)
        self._local_room = 0

    def actual(self, used: Used) -> int:
        return 0

    def give(self, reserved: int, actual: int, now: int) -> None:
        super().give(reserved, actual, now)
        self._ended.add(reserved, now)

    def reserve_arguments(self, want: int, need: int) -> list[Arg]:
        self._asked_first, self._next = self._next, self._next + want
        return ["slots", self.lease.cap, self._ttl_ms, want, need, self._asked_first]

    def settle_arguments(self, delta: int, away_ms: int, now: int) -> list[Arg]:
        """Renews all that are held: what the store lost comes back with that."""
        freed = [self._numbers.pop() for _ in range(min(delta, len(self._numbers)))]
        for _ in range(-delta):
            self._numbers.append(self._next)
            self._next += 1
        self._renewed_ms = now
        return ["slots", self.lease.cap, self._ttl_ms, _text(self._numbers), _text(freed)]

    def granted(self, amount: int, left: int, given: int, gateways: int, asked_ms: int) -> None:
        self._numbers.extend(range(self._asked_first, self._asked_first + amount))
        self.lease.granted(amount, left, asked_ms)
        self.share = Share.of(len(self._numbers), given, gateways)

    def is_due(self, now: int) -> bool:
        return bool(self._numbers) and now - self._renewed_ms >= self._renew_ms

    def lost(self) -> None:
        """Only what requests hold is claimed again."""
        while len(self._numbers) > self.lease.reserved + self.aside:
            self._numbers.pop()

    def wait_ms(self, store_wait_ms: int, now: int) -> int:
        """Until one is free, by how often one was lately."""
        per_second = self._ended.per_second(now)
        return _USUAL_WAIT_MS if per_second < 1 else max(1, int(1000 / per_second))

    # -- while the store is down --------------------------------------------------------------------------

    def local_begin(self, gateways: int, now: int) -> None:
        if self.lease.store_left is None:
            self.share = Share.of(0, 0, gateways)
        self._local_room = slots_while_down(self.lease.cap, self.share)
        super().local_begin(gateways, now)

    def local_has(self, amount: int, now: int) -> bool:
        return self.lease.reserved + amount <= self._local_room

    def local_wait_ms(self, amount: int, now: int) -> int | None:
        return self.wait_ms(0, now)


def _text(numbers: "deque[int] | list[int]") -> str:
    return " ".join(map(str, numbers))
