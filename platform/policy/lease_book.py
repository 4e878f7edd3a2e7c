"""One tenant's leases on this gateway, settled with the store in numbered steps that may be repeated.

A settlement is sent again, unchanged, until the store has it; the store applies each number once. So a lost
answer costs nothing and charges nobody twice. Pure: the caller does the sending.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from policy.lease import Lease

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Settlement(Generic[K]):
    """`deltas`: units that go back to each limit; negative: debt. Never zero."""

    sequence: int
    deltas: tuple[tuple[K, int], ...]


class LeaseBook(Generic[K]):
    """Keyed by limit. At most one settlement and one refill are under way."""

    def __init__(self) -> None:
        self.leases: dict[K, Lease] = {}
        self._sequence = 0
        self._sent: Settlement[K] | None = None
        self._is_refilling = False

    def lease(self, key: K, cap: int, now_ms: int, *, rate_per_minute: int = 0) -> Lease:
        """The limit's lease, begun empty; cap and rate follow the contract. What it holds of a limit that was
        lowered goes back: it was granted under the old one."""
        lease = self.leases.get(key)
        if lease is None:
            lease = self.leases[key] = Lease(cap, now_ms)
        if cap < lease.cap or rate_per_minute < lease.rate_per_minute:
            lease.lower()
        lease.cap, lease.rate_per_minute = cap, rate_per_minute
        return lease

    # -- refills ---------------------------------------------------------------------------------------------

    def refill_begin(self, gateways: int, now_ms: int) -> dict[K, int]:
        """Units to ask for by limit, of leases that run low; empty: nothing to ask, or it was asked already.
        What is not empty must be followed by `refill_end`, whatever came of it."""
        if self._is_refilling:
            return {}
        wanted = {key: lease.refill_amount(gateways, now_ms) for key, lease in self.leases.items()}
        wanted = {key: amount for key, amount in wanted.items() if amount > 0}
        self._is_refilling = bool(wanted)
        return wanted

    def refill_end(self) -> None:
        self._is_refilling = False

    # -- settlements -----------------------------------------------------------------------------------------

    def settlement(self, now_ms: int) -> Settlement[K] | None:
        """The one that is under way, or a new one over all that leases return or owe; None: nothing."""
        if self._sent is None:
            for lease in self.leases.values():
                lease.expire(now_ms)
            deltas = tuple((key, lease.returning) for key, lease in self.leases.items() if lease.returning)
            if not deltas:
                return None
            for key, _ in deltas:
                self.leases[key].returned()
            self._sequence += 1
            self._sent = Settlement(self._sequence, deltas)
        return self._sent

    def settled(self, sequence: int, unpaid: Mapping[K, int] | None = None) -> None:
        """The store has it. `unpaid`: units of debt, by limit, that it could not charge yet."""
        if self._sent is None or self._sent.sequence != sequence:
            return
        self._sent = None
        for key, amount in (unpaid or {}).items():
            self.leases[key].returning -= amount

    # -- upkeep ----------------------------------------------------------------------------------------------

    def forget_grants(self) -> None:
        """The store lost its data (`Lease.forget_grants`); what was under way is settled anew."""
        for key, delta in self._sent.deltas if self._sent is not None else ():
            self.leases[key].returning += min(0, delta)
        self._sent = None
        for lease in self.leases.values():
            lease.forget_grants()

    def forget(self, key: K) -> bool:
        """Drops a lease that holds and owes nothing, and is in no settlement under way. False: not yet."""
        is_sent = self._sent is not None and any(key == sent for sent, _ in self._sent.deltas)
        if is_sent or not self.leases[key].is_empty():
            return False
        del self.leases[key]
        return True
