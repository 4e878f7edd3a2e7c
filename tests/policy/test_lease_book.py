"""Gateways' leases and the store's bucket together are the limit, to the unit, whatever gets lost between."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policy.bucket import Bucket
from policy.lease import LIFE_MS, Lease
from policy.lease_book import LeaseBook, Settlement
from policy.reserve_all import reserve_all

LIMITS = {"tokens": 50_000, "requests": 5_000}
GATEWAYS = 3


class Store:
    """What the real one does: buckets without a rate, and every settlement's number once."""

    def __init__(self) -> None:
        self.buckets = {name: Bucket(cap, 0, 0) for name, cap in LIMITS.items()}
        self._applied: dict[int, tuple[int, dict[str, int]]] = {}

    def grant(self, wants: dict[str, int], needs: dict[str, int]) -> dict[str, int] | None:
        """Between need and want of each, or nothing of any."""
        if any(needs[name] > self.buckets[name].available(0) for name in wants):
            return None
        grants = {
            name: max(needs[name], min(want, self.buckets[name].available(0))) for name, want in wants.items()
        }
        assert all(self.buckets[name].take(amount, 0) for name, amount in grants.items() if amount)
        return grants

    def settle(self, gateway: int, settlement: Settlement[str]) -> dict[str, int]:
        sequence, unpaid = self._applied.get(gateway, (0, {}))
        if settlement.sequence > sequence:
            unpaid = {name: self.buckets[name].settle(delta, 0) for name, delta in settlement.deltas}
            self._applied[gateway] = (settlement.sequence, unpaid)
        return unpaid


Open = tuple[int, list[int]]  # gateway, reserved amounts by limit


class Conservation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.store = Store()
        self.books: list[LeaseBook[str]] = [LeaseBook() for _ in range(GATEWAYS)]
        self.open: list[Open] = []
        self.used = dict.fromkeys(LIMITS, 0)
        self.sent: dict[int, Settlement[str]] = {}

    @initialize(amount=st.integers(100, 2_000))
    def begin(self, amount: int) -> None:
        self.reserve(0, amount)

    def leases(self, gateway: int) -> list[Lease]:
        return [self.books[gateway].lease(name, cap, self.now_ms) for name, cap in LIMITS.items()]

    @rule(gateway=st.integers(0, GATEWAYS - 1), tokens=st.integers(0, 3_000))
    def reserve(self, gateway: int, tokens: int) -> None:
        leases, amounts = self.leases(gateway), [tokens, 1]
        if not reserve_all(leases, amounts, self.now_ms):
            needs = dict(zip(LIMITS, amounts, strict=True))
            wants = {
                name: max(needs[name], lease.resize(GATEWAYS, self.now_ms))
                for name, lease in zip(LIMITS, leases, strict=True)
            }
            grants = self.store.grant(wants, needs)
            if grants is None:
                return
            for lease, amount in zip(leases, grants.values(), strict=True):
                lease.granted(amount, 10**9, self.now_ms)
            assert reserve_all(leases, amounts, self.now_ms)
        self.open.append((gateway, amounts))

    @rule(gateway=st.integers(0, GATEWAYS - 1), tokens=st.integers(0, 3_000))
    def borrow(self, gateway: int, tokens: int) -> None:
        for lease, amount in zip(self.leases(gateway), [tokens, 1], strict=True):
            lease.borrow(amount, self.now_ms)
        self.open.append((gateway, [tokens, 1]))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=st.integers(0, 6_000))
    def end(self, data: st.DataObject, tokens: int) -> None:
        gateway, reserved = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        for name, lease, amount, used in zip(
            LIMITS, self.leases(gateway), reserved, [tokens, 1], strict=True
        ):
            lease.settle(amount, used, self.now_ms)
            self.used[name] += used

    @rule(gateway=st.integers(0, GATEWAYS - 1), comes_back=st.booleans())
    def refill(self, gateway: int, comes_back: bool) -> None:
        """An answer that is lost is a grant that is lost: so it is asked again by its number, and here it
        was not executed."""
        book = self.books[gateway]
        wants = book.refill_begin(GATEWAYS, self.now_ms)
        assert not wants or book.refill_begin(GATEWAYS, self.now_ms) == {}
        grants = self.store.grant(wants, dict.fromkeys(wants, 0)) if comes_back else None
        for name, amount in (grants or {}).items():
            book.leases[name].granted(amount, 10**9, self.now_ms)
        book.refill_end()

    @rule(gateway=st.integers(0, GATEWAYS - 1), arrives=st.booleans(), answered=st.booleans())
    def settle(self, gateway: int, arrives: bool, answered: bool) -> None:
        settlement = self.books[gateway].settlement(self.now_ms)
        if settlement is None:
            return
        earlier = self.sent.get(gateway)
        assert earlier is None or earlier.sequence != settlement.sequence or earlier == settlement
        self.sent[gateway] = settlement
        if arrives:
            unpaid = self.store.settle(gateway, settlement)
            if answered:
                self.books[gateway].settled(settlement.sequence, unpaid)
                self.books[gateway].settled(settlement.sequence, unpaid)  # an answer that comes twice

    @rule(passed_ms=st.sampled_from([1, 300, LIFE_MS]))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule(gateway=st.integers(0, GATEWAYS - 1))
    def forget(self, gateway: int) -> None:
        for name in list(self.books[gateway].leases):
            self.books[gateway].forget(name)

    @invariant()
    def nothing_is_created(self) -> None:
        """No gateway ever holds more than the store gave it."""
        for book in self.books:
            assert all(lease.left >= 0 and lease.reserved >= 0 for lease in book.leases.values())

    def teardown(self) -> None:
        """When all requests have ended and all is settled, the store holds the limit less what was used."""
        while self.open:
            gateway, reserved = self.open.pop()
            for name, lease, amount in zip(LIMITS, self.leases(gateway), reserved, strict=True):
                lease.settle(amount, amount, self.now_ms)
                self.used[name] += amount
        self.now_ms += LIFE_MS
        owed = dict.fromkeys(LIMITS, 0)
        for gateway, book in enumerate(self.books):
            for _ in range(2):  # one that is under way, then the rest
                settlement = book.settlement(self.now_ms)
                if settlement is not None:
                    book.settled(settlement.sequence, self.store.settle(gateway, settlement))
            for name, lease in book.leases.items():
                assert lease.left == 0
                owed[name] -= lease.returning
        held = {name: bucket.available(0) for name, bucket in self.store.buckets.items()}
        assert {name: held[name] - owed[name] + self.used[name] for name in LIMITS} == LIMITS


Conservation.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConservation = Conservation.TestCase


# -- single behaviours -------------------------------------------------------------------------------------


def book_with(left: int) -> tuple[LeaseBook[str], Lease]:
    book: LeaseBook[str] = LeaseBook()
    lease = book.lease("tokens", 10_000, 0)
    lease.granted(left, 0, 0)
    return book, lease


def test_leases_that_run_low_are_refilled_by_one_call_at_a_time() -> None:
    book, lease = book_with(100)
    book.lease("requests", 10_000, 0).granted(50, 10_000, 0)
    assert book.refill_begin(1, 0) == {}
    lease.heard(10_000, 0)
    lease.take(90, 0)
    assert book.refill_begin(1, 0) == {"tokens": 80}
    assert book.refill_begin(1, 0) == {}
    book.refill_end()
    assert book.refill_begin(1, 0) == {"tokens": 80}


def test_a_settlement_is_the_same_until_it_is_confirmed() -> None:
    book, lease = book_with(100)
    first = book.settlement(LIFE_MS)
    assert first == Settlement(1, (("tokens", 100),))
    lease.borrow(30, LIFE_MS)
    assert book.settlement(LIFE_MS) is first
    book.settled(7)
    assert book.settlement(LIFE_MS) is first
    book.settled(1)
    assert book.settlement(LIFE_MS) == Settlement(2, (("tokens", -30),))
    book.settled(2, {"tokens": 10})
    assert book.settlement(LIFE_MS) == Settlement(3, (("tokens", -10),))


def test_nothing_to_say_is_no_settlement() -> None:
    book, _ = book_with(100)
    assert book.settlement(LIFE_MS - 1) is None


def test_leases_are_forgotten_when_nothing_is_lost_with_them() -> None:
    book, lease = book_with(100)
    assert not book.forget("tokens")
    book.settlement(LIFE_MS)
    assert lease.is_empty()
    assert not book.forget("tokens")
    book.settled(1)
    assert book.forget("tokens")
    assert book.leases == {}


def test_the_contract_may_change_a_limit() -> None:
    book, lease = book_with(0)
    assert book.lease("tokens", 77, 0, rate_per_minute=70) is lease
    assert (lease.cap, lease.rate_per_minute) == (77, 70)


@pytest.mark.parametrize(
    ("cap", "rate", "left"), [(1_000, 60, 50), (2_000, 120, 50), (999, 60, 0), (1_000, 59, 0)]
)
def test_what_is_held_of_a_limit_that_was_lowered_goes_back(cap: int, rate: int, left: int) -> None:
    book: LeaseBook[str] = LeaseBook()
    book.lease("tokens", 1_000, 0, rate_per_minute=60).granted(50, 900, 0)
    lease = book.lease("tokens", cap, 10, rate_per_minute=rate)
    assert (lease.left, lease.returning) == (left, 50 - left)


def test_a_store_that_lost_its_data_hears_debts_again_but_gets_nothing_back() -> None:
    """Given units on their way back, a debt on its way, another one since, and a lease that is alive."""
    book, lease = book_with(100)
    other = book.lease("requests", 10, 0)
    other.borrow(4, 0)
    assert book.settlement(LIFE_MS) == Settlement(1, (("tokens", 100), ("requests", -4)))
    lease.borrow(30, LIFE_MS)
    other.granted(3, 0, LIFE_MS)
    book.forget_grants()
    assert (lease.left, other.left) == (0, 0)
    assert book.settlement(2 * LIFE_MS) == Settlement(2, (("tokens", -30), ("requests", -4)))
    book.settled(2)
    book.forget_grants()
    assert book.settlement(2 * LIFE_MS) is None
