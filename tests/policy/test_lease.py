"""A lease asks the store seldom, gives back what it does not need, and takes all or nothing."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.bucket import Bucket
from policy.demand_rate import DemandRate
from policy.lease import ASK_AGAIN_MS, LIFE_MS, Lease
from policy.reserve_all import reserve_all

CAP = 100_000


def lease_of(left: int, *, cap: int = CAP) -> Lease:
    lease = Lease(cap, 0)
    lease.granted(left, cap, 0)
    return lease


def state(lease: Lease) -> dict[str, Any]:
    kept = {name: getattr(lease, name) for name in Lease.__slots__ if name != "_demand"}
    demand = {name: getattr(lease._demand, name) for name in DemandRate.__slots__}
    return {**kept, **demand}


# -- demand ------------------------------------------------------------------------------------------------


def test_a_steady_rate_is_learned_and_forgotten() -> None:
    demand = DemandRate(0)
    for now_ms in range(0, 20_000, 10):
        demand.add(7, now_ms)
    assert demand.per_second(20_000) == pytest.approx(700, rel=0.03)
    assert demand.per_second(25_000) == pytest.approx(700 / 2.718, rel=0.03)


def test_the_largest_amount_is_that_of_the_last_one_to_two_windows() -> None:
    demand = DemandRate(0)
    assert demand.largest(0) == 0
    demand.add(900, 100)
    demand.add(30, 5_100)
    assert demand.largest(9_999) == 900
    assert demand.largest(10_000) == 30
    assert demand.largest(30_000) == 0


def test_a_clock_that_jumps_back_stands_still() -> None:
    demand = DemandRate(10_000)
    demand.add(50, 10_000)
    assert demand.per_second(0) == demand.per_second(10_000) == 10
    assert demand.largest(0) == 50


# -- size --------------------------------------------------------------------------------------------------


def test_a_lease_holds_one_and_a_half_seconds_of_demand() -> None:
    lease = lease_of(10**9, cap=10**6)
    for now_ms in range(0, 20_000, 10):
        lease.granted(0, 10**9, now_ms)
        assert lease.take(20, now_ms)
    assert lease.resize(4, 20_000) == pytest.approx(3_000, rel=0.03)


@given(
    st.integers(1, 10**6),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 9_000))),
)
def test_leases_of_all_gateways_are_at_most_a_fifth_and_hold_the_largest_request(
    cap: int, gateways: int, history: list[tuple[int, int]]
) -> None:
    lease, now_ms = Lease(cap, 0), 0
    for passed_ms, amount in history:
        now_ms += passed_ms
        lease.borrow(amount, now_ms)
    size = lease.resize(gateways, now_ms)
    assert 5 * gateways * size <= cap
    recent = history[-1][1] if history else 0
    assert size == 0 or size >= recent


def test_a_limit_that_is_small_for_its_requests_gets_no_lease() -> None:
    lease = lease_of(500, cap=10_000)
    lease.take(500, 0)
    assert lease.resize(4, 0) == 500
    assert lease.resize(5, 0) == 0
    assert lease.refill_amount(5, 0) == 0


def test_it_is_refilled_below_two_fifths_and_up_to_its_size() -> None:
    lease = lease_of(1_000)
    for _ in range(6):
        lease.take(100, 0)
    lease.size = lease.resize(1, 0)
    assert lease.size == 180
    lease.left = 72
    assert lease.refill_amount(1, 0) == 0
    lease.left = 71
    assert lease.refill_amount(1, 0) == 109


# -- life --------------------------------------------------------------------------------------------------


def test_what_is_not_spent_within_its_life_goes_back() -> None:
    lease = lease_of(100)
    assert lease.take(30, LIFE_MS - 1)
    lease.expire(LIFE_MS - 1)
    assert (lease.left, lease.returning) == (70, 0)
    assert not lease.take(1, LIFE_MS)
    lease.expire(LIFE_MS)
    assert (lease.left, lease.returning) == (0, 70)


def test_a_grant_does_not_revive_a_lease_that_is_over() -> None:
    lease = lease_of(100)
    lease.granted(40, 0, LIFE_MS)
    assert (lease.left, lease.returning) == (40, 100)


def test_a_reservation_gives_back_what_it_did_not_use() -> None:
    """Given a lease that wants 60 units and holds 50, then 10 stay and the rest goes to the store."""
    lease = lease_of(100)
    lease.take(50, 0)
    lease.size = 60
    lease.settle(50, 20, 0)
    assert (lease.left, lease.returning, lease.reserved, lease.used) == (60, 20, 0, 20)


def test_after_its_life_all_of_it_goes_back() -> None:
    lease = lease_of(100)
    lease.take(50, 0)
    lease.size = 1_000
    lease.settle(50, 20, LIFE_MS)
    assert (lease.left, lease.returning) == (50, 30)


def test_more_than_was_reserved_comes_from_the_lease_and_then_is_debt() -> None:
    lease = lease_of(100)
    lease.take(50, 0)
    lease.settle(50, 130, 0)
    assert (lease.left, lease.returning, lease.used) == (0, -30, 130)


def test_a_lease_is_empty_when_nothing_would_be_lost_with_it() -> None:
    lease = lease_of(10)
    assert not lease.is_empty()
    assert lease.take(10, 0)
    assert not lease.is_empty()
    lease.settle(10, 11, 1)
    assert not lease.is_empty()
    lease.returning += 1
    assert lease.is_empty()


def test_of_a_store_that_lost_its_data_nothing_is_left_but_debts() -> None:
    lease = lease_of(100)
    lease.take(60, 0)
    lease.settle(60, 50, 0)
    lease.forget_grants()
    assert (lease.left, lease.returning, lease.store_left) == (0, 0, None)
    lease.borrow(60, 0)
    lease.forget_grants()
    assert lease.returning == -60


def test_a_lease_may_be_for_longer() -> None:
    lease = Lease(10**9, 0, ahead_s=75, life_ms=75_000)
    lease.granted(10_000, 10**9, 0)
    assert lease.take(1_000, 74_999)
    assert lease.resize(1, 74_999) == 15_000
    assert not lease.has(1, 75_000)


# -- what is known of the store ----------------------------------------------------------------------------


def test_the_remainder_is_the_stores_and_the_leases() -> None:
    lease = Lease(1_000, 0)
    assert lease.remaining() == 1_000
    lease.granted(100, 300, 0)
    assert lease.remaining() == 400
    lease.take(30, 0)
    lease.borrow(20, 0)
    assert lease.remaining() == 350
    lease.heard(-500, 5)
    assert (lease.remaining(), lease.heard_ms) == (0, 5)
    lease.heard(5_000, 6)
    assert lease.remaining() == 1_000


def test_a_refusal_is_repeated_for_a_moment_without_asking() -> None:
    lease = Lease(1_000, 0, rate_per_minute=60)
    assert lease.refused_ms(100, 0) == 0
    lease.refused(100, 8_000, 0)
    assert lease.refused_ms(100, ASK_AGAIN_MS - 1) == 8_000 - ASK_AGAIN_MS + 1
    assert lease.refused_ms(100, ASK_AGAIN_MS) == 0


def test_and_says_what_other_amounts_wait() -> None:
    """Given a unit a millisecond, 100 of which the store has in 80 ms: it has 20 now."""
    lease = Lease(1_000, 0, rate_per_minute=60_000)
    lease.refused(100, 80, 0)
    assert [lease.refused_ms(amount, 10) for amount in (30, 31, 100, 150)] == [0, 1, 70, 120]
    assert lease.refused_ms(150, 130) == 0


def test_without_a_rate_only_what_is_no_smaller_waits() -> None:
    lease = Lease(1_000, 0)
    lease.refused(100, 8_000, 0)
    assert lease.refused_ms(99, 10) == 0
    assert lease.refused_ms(100, 10) == lease.refused_ms(700, 10) == 7_990


@given(st.integers(1, 100_000), st.integers(0, 9_000), st.integers(0, 9_000), st.integers(0, 9_000))
def test_waits_are_what_a_bucket_says_and_monotone(rate: int, level: int, amount: int, other: int) -> None:
    bucket, lease = Bucket(10_000, rate, 0, available=level), Lease(10_000, 0, rate_per_minute=rate)
    wait_ms = bucket.wait_ms(amount, 0)
    assert wait_ms is not None
    lease.refused(amount, wait_ms, 0)
    known, true = lease.refused_ms(other, 100), bucket.wait_ms(other, 100)
    assert true is not None
    if wait_ms > 0:
        assert true <= known <= true + 1
    assert lease.refused_ms(other + 1, 100) >= known


def test_a_refill_that_the_store_cannot_give_whole_is_not_asked_for() -> None:
    """Given a lease that wants 175 to 180 more, and a store that has 100 and a unit a millisecond."""
    lease = Lease(CAP, 0, rate_per_minute=60_000)
    lease.granted(600, 100, 0)
    for _ in range(6):
        lease.take(100, 0)
    assert lease.refill_amount(1, 70) == 0
    assert lease.refill_amount(1, 90) > 170
    lease.heard(-500, 90)
    assert lease.refill_amount(1, 90 + ASK_AGAIN_MS - 1) == 0
    assert lease.refill_amount(1, 90 + ASK_AGAIN_MS) > 160


def test_a_refusal_ends_when_the_store_has_more_than_it_let_expect() -> None:
    """Given a unit a millisecond, and 20 of them when 100 were refused. What is given back counts when the
    store has it."""
    lease = Lease(1_000, 0, rate_per_minute=60_000)
    lease.borrow(20, 0)
    lease.refused(100, 80, 0)
    lease.settle(20, 0, 0)
    lease.heard(30, 10)
    assert lease.refused_ms(100, 10) == 70
    lease.heard(31, 10)
    assert lease.refused_ms(100, 10) == 0


@pytest.mark.parametrize(("store_left", "wait_ms"), [(99, 8_000), (100, 0)])
def test_without_a_rate_it_ends_when_the_amount_is_there(store_left: int, wait_ms: int) -> None:
    lease = Lease(1_000, 0)
    lease.refused(100, 8_000, 0)
    lease.granted(1, store_left, 0)
    assert lease.refused_ms(100, 0) == wait_ms


# -- all or nothing ----------------------------------------------------------------------------------------

lefts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=5)


@given(lefts)
def test_all_is_taken_or_nothing_is_changed(drawn: list[tuple[int, int]]) -> None:
    leases = [lease_of(left, cap=55) for left, _ in drawn]
    amounts = [amount for _, amount in drawn]
    before = [state(copy.deepcopy(lease)) for lease in leases]
    if reserve_all(leases, amounts, 0):
        assert [lease.left for lease in leases] == [left - amount for left, amount in drawn]
        assert [lease.reserved for lease in leases] == amounts
    else:
        assert [state(lease) for lease in leases] == before
        assert any(amount > left for left, amount in drawn)
