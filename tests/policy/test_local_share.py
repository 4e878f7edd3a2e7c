"""While the store is down, gateways together grant what the limit allows, and only money that is there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.lease import LIFE_MS
from policy.local_share import LocalShare, Share, burst_units, slots_while_down, spend_while_down
from policy.reserve_all import reserve_all

SECOND_MS = 1_000


def test_a_share_is_by_what_was_admitted_or_else_equal() -> None:
    assert Share.of(30, 120, 4) == Share(30, 120)
    assert Share.of(0, 120, 4) == Share(1, 4)
    assert Share.of(0, 0, 0) == Share(1, 1)
    assert Share.of(50, 20, 4) == Share(50, 50)
    assert (Share(1, 3).floor(100), Share(1, 3).ceil(100)) == (33, 34)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 100_000), st.integers(1, 90))
def test_all_gateways_together_refill_at_the_limits_rate(
    admitted: list[int], rate: int, seconds: int
) -> None:
    """Given any shares that make a whole, what is granted in a time is the limit's refill, less a unit a
    gateway at most."""
    now_ms, granted = seconds * SECOND_MS, 0
    for own in admitted:
        share = LocalShare(10**9, rate, Share.of(own, sum(admitted), len(admitted)), 0, 0)
        amount = now_ms * rate * own // (60_000 * sum(admitted))
        assert share.take(amount, now_ms)
        assert not share.take(1, now_ms)
        granted += amount
    refill = now_ms * rate // 60_000
    assert refill - len(admitted) < granted <= refill


def test_tight_is_half_of_it_and_keeps_what_there_is() -> None:
    share = LocalShare(60_000, 60_000, Share(1, 2), 100, 0)  # half a unit a millisecond
    share.tighten(100)
    assert share.has(150, 100)
    assert not share.has(151, 100)
    assert share.wait_ms(151, 100) == 4
    assert share.take(150, 100)
    assert share.take(25, 200)
    share.settle(20, 200)
    assert share.take(20, 200)


def test_it_holds_its_part_of_the_cap_at_most() -> None:
    share = LocalShare(1_000, 60_000, Share(1, 4), 0, 0)
    assert not share.has(251, 10**9)
    assert share.has(250, 10**9)
    assert share.wait_ms(251, 10**9) is None


def test_it_begins_with_the_lease_and_its_part_of_what_the_store_must_hold() -> None:
    half = Share(1, 2)
    assert burst_units(1_000, 60, half, left=30, store_left=100, age_ms=0) == 80
    assert burst_units(1_000, 60, half, left=30, store_left=100, age_ms=100_000) == 130
    assert burst_units(1_000, 60, Share(1, 1), left=30, store_left=-300, age_ms=0) == 30
    assert burst_units(1_000, 60, half, left=0, store_left=None, age_ms=0) == 500
    assert burst_units(1_000, 60, half, left=900, store_left=1_000, age_ms=0) == 1_000


def test_all_or_nothing_holds_here_too() -> None:
    shares = [LocalShare(1_000, 0, Share(1, 1), 100, 0), LocalShare(10, 0, Share(1, 1), 1, 0)]
    assert not reserve_all(shares, [100, 2], 0)
    assert shares[0].has(100, 0)
    assert reserve_all(shares, [100, 1], 0)
    assert not reserve_all(shares, [0, 11], 0)


@given(
    st.integers(100, 10**9),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10**6)), min_size=1, max_size=5),
    st.data(),
)
def test_money_that_gateways_may_spend_meanwhile_is_there(
    budget: int, gateways: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Given a remainder that all gateways heard within a lease's life, and leases that the store paid for."""
    remainder = data.draw(st.integers(0, budget))
    total = sum(own for own, _ in gateways)
    allowed = sum(
        spend_while_down(
            budget,
            Share(own, total),
            left=left,
            store_left=remainder,
            age_ms=LIFE_MS,
            gateways=len(gateways),
        )
        for own, left in gateways
    )
    assert allowed <= max(0, remainder - budget // 100) + sum(left for _, left in gateways)


@pytest.mark.parametrize(
    ("store_left", "age_ms", "gateways", "allowed"),
    [
        (500, LIFE_MS, 2, 7 + 245),
        (500, LIFE_MS + 1, 2, 7),
        (500, 10**9, 1, 7 + 245),
        (9, 0, 1, 7),
        (None, 0, 1, 7),
    ],
)
def test_a_remainder_that_is_old_says_nothing_beside_other_gateways(
    store_left: int | None, age_ms: int, gateways: int, allowed: int
) -> None:
    share = Share(1, 2)
    assert (
        spend_while_down(1_000, share, left=7, store_left=store_left, age_ms=age_ms, gateways=gateways)
        == allowed
    )


def test_slots_are_shared_upwards_and_at_least_one() -> None:
    assert slots_while_down(10, Share(1, 3)) == 4
    assert slots_while_down(10, Share(1, 100)) == 1
    assert slots_while_down(3, Share(1, 1)) == 3
    assert slots_while_down(0, Share(1, 1)) == 0
