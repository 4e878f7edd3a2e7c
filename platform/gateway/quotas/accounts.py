"""What all limits have in common on this gateway: a lease of the store's, and a share while that is down.

An account asks nobody and tells nobody: `gateway.quotas.tenant` does. Amounts are tokens, requests, slots or
micro-dollars, by the limit; times are monotonic milliseconds.
"""

from abc import ABC, abstractmethod

from gateway.quotas.demand import Used
from gateway.quotas.store import Arg
from policy.lease import Lease
from policy.local_share import Share
from policy.promises import Promises
from tenants.contracts import TOKENS_PER_MINUTE, QuotaLimit


class Account(ABC):
    """`key` names it in the store; `lease.reserved` is what running requests hold of it here.

    `keeps_grants`: what was granted is reported again when the store loses its data, not given up.
    """

    keeps_grants = False

    def __init__(self, limit: QuotaLimit, key: bytes, lease: Lease) -> None:
        self.limit = limit
        self.key = key
        self.lease = lease
        self.share = Share.of(0, 0, 1)  # of what all gateways give out
        self.promises = Promises()
        self.aside = 0  # of what is here, for a request that waits for the rest
        self.is_local = False
        self.is_ending = False

    @abstractmethod
    def actual(self, used: Used) -> int:
        """What of a reservation was used."""

    def give(self, reserved: int, actual: int, now: int) -> None:
        """The end of a reservation, or a part of it."""
        self.lease.settle(reserved, actual, now)

    # -- the store ----------------------------------------------------------------------------------------

    @abstractmethod
    def reserve_arguments(self, want: int, need: int) -> list[Arg]: ...

    @abstractmethod
    def settle_arguments(self, delta: int, away_ms: int, now: int) -> list[Arg]:
        """`delta`: given back, or owed; `away_ms`: how long this gateway granted by itself."""

    @abstractmethod
    def granted(self, amount: int, left: int, given: int, gateways: int, asked_ms: int) -> None:
        """`given`: by the store to all gateways, of late or until now."""

    def settled(self, left: int | None, asked_ms: int) -> None:
        """The store was told; `left` is None where it does not know the limit's use."""
        if left is not None:
            self.lease.heard(left, asked_ms)

    def sample(self, now: int) -> None:
        """Twice a second: accounts that remember what was used lately look."""
        return

    def is_due(self, now: int) -> bool:
        """Whether the store should be told where this account stands, though nothing is given back."""
        return False

    @abstractmethod
    def lost(self) -> None:
        """The store has forgotten the limit's use."""

    def wait_ms(self, store_wait_ms: int, now: int) -> int:
        """Until a refused amount may be had."""
        return store_wait_ms

    @property
    def is_of_tokens(self) -> bool:
        return self.limit.name == TOKENS_PER_MINUTE

    def take_more(self, amount: int, now: int) -> None:
        """Of a request that runs: from the lease, or as a debt."""
        if self.is_local or not self.lease.take(amount, now):
            self.lease.borrow(amount, now)

    @property
    def is_idle(self) -> bool:
        return self.lease.is_empty()

    # -- while the store is down --------------------------------------------------------------------------

    def local_begin(self, gateways: int, now: int) -> None:
        """From here on this gateway grants by itself; what the lease held is part of that."""
        self.is_local = True
        self.lease.surrender()

    @abstractmethod
    def local_has(self, amount: int, now: int) -> bool: ...

    def local_take(self, amount: int, now: int) -> None:
        self.lease.borrow(amount, now)

    def local_wait_ms(self, amount: int, now: int) -> int | None:
        """None: not while the store is down."""
        return None

    def local_tighten(self, now: int) -> None:
        """The outage lasts: accounts that refill by themselves do so more slowly."""
        return

    def local_end(self) -> None:
        self.is_local = False
