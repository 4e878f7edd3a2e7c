"""A bucket is exact to the unit, a refusal changes nothing, waits are honest, no clock gives quota away."""

import copy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.bucket import Bucket

caps = st.integers(1, 10_000)
rates = st.integers(0, 20_000)
periods = st.sampled_from([1, 7, 60_000, 60_000 * 13])
amounts = st.integers(0, 12_000)
passed = st.one_of(st.integers(0, 50), st.integers(0, 200_000))
jumps = st.one_of(passed, st.integers(-200_000, 0))
buckets = st.builds(lambda cap, rate, period: Bucket(cap, rate, 0, period_ms=period), caps, rates, periods)


def state(bucket: Bucket) -> tuple[Any, ...]:
    return tuple(getattr(bucket, name) for name in Bucket.__slots__)


@given(buckets, st.lists(st.tuples(passed, st.sampled_from(["take", "settle"]), st.integers(-9_000, 9_000))))
def test_it_keeps_exactly_what_fractions_would(bucket: Bucket, history: list[tuple[int, str, int]]) -> None:
    now_ms, level = 0, Fraction(bucket.cap)
    for wait_ms, action, amount in history:
        now_ms += wait_ms
        level = min(Fraction(bucket.cap), level + Fraction(wait_ms * bucket.rate, bucket.period_ms))
        if action == "take":
            taken = bucket.take(abs(amount), now_ms)
            assert taken == (abs(amount) <= level)
            level -= abs(amount) if taken else 0
        else:
            unpaid = bucket.settle(amount, now_ms)
            assert (
                unpaid == 0 or level + amount + unpaid - 1 < -bucket.cap
            )  # not one unit more could be charged
            level = min(Fraction(bucket.cap), level + amount + unpaid)
        assert bucket.available(now_ms) == level // 1
        assert -bucket.cap <= level <= bucket.cap


@given(buckets, st.lists(st.tuples(jumps, amounts)))
def test_what_was_taken_is_at_most_the_cap_and_the_rate_of_the_time_that_passed(
    bucket: Bucket, history: list[tuple[int, int]]
) -> None:
    """Also with a clock that jumps: time that it takes back and gives again counts as time that passed, and
    then only beyond one fill."""
    now_ms = forward_ms = taken = 0
    for jump_ms, amount in history:
        now_ms += jump_ms
        forward_ms += max(0, jump_ms)
        taken += amount if bucket.take(amount, now_ms) else 0
        assert bucket.available(now_ms) <= bucket.cap
        assert taken * bucket.period_ms <= bucket.cap * bucket.period_ms + forward_ms * bucket.rate


@given(buckets, amounts, st.lists(passed), st.data())
def test_a_clock_that_goes_back_and_returns_has_given_nothing(
    bucket: Bucket, amount: int, steps: list[int], data: st.DataObject
) -> None:
    bucket.take(min(amount, bucket.cap), 0)
    fill_ms = bucket.cap * bucket.period_ms // bucket.rate if bucket.rate else 200_000
    steady = copy.copy(bucket)
    now_ms = 0
    for step_ms in steps:
        now_ms += step_ms
        before = bucket.available(now_ms)
        back_ms = data.draw(st.integers(0, fill_ms))
        assert bucket.available(now_ms - back_ms) == before
        assert bucket.available(now_ms) == before == steady.available(now_ms)


@given(caps, st.integers(1, 20_000), st.integers(0, 10**9))
def test_nobody_waits_longer_than_one_fill_for_a_clock_that_went_back(
    cap: int, rate: int, back_ms: int
) -> None:
    bucket = Bucket(cap, rate, 0)
    bucket.take(cap, 0)
    fill_ms = -(-cap * 60_000 // rate)
    wait_ms = bucket.wait_ms(cap, -back_ms)
    assert wait_ms is not None
    assert wait_ms <= 2 * fill_ms
    assert bucket.take(cap, -back_ms + wait_ms)


@given(buckets, st.lists(st.tuples(passed, amounts)), amounts)
def test_a_refusal_changes_nothing(bucket: Bucket, history: list[tuple[int, int]], amount: int) -> None:
    now_ms = 0
    for wait_ms, taken in history:
        now_ms += wait_ms
        bucket.take(taken, now_ms)
    bucket.available(now_ms)
    before = state(bucket)
    if not bucket.take(amount, now_ms):
        assert state(bucket) == before


@given(buckets, st.lists(st.tuples(jumps, st.integers(-9_000, 9_000))), amounts, amounts)
def test_waits_are_exact_and_monotone(
    bucket: Bucket, history: list[tuple[int, int]], amount: int, other: int
) -> None:
    now_ms = 0
    for jump_ms, delta in history:
        now_ms += jump_ms
        bucket.settle(delta, now_ms)
    wait_ms = bucket.wait_ms(amount, now_ms)
    more_ms = bucket.wait_ms(max(amount, other), now_ms)
    if wait_ms is None:
        assert more_ms is None
        assert amount > bucket.cap or bucket.rate == 0
        return
    assert more_ms is None or more_ms >= wait_ms
    if wait_ms > 0:
        assert not copy.copy(bucket).take(amount, now_ms + wait_ms - 1)
        assert copy.copy(bucket).wait_ms(amount, now_ms + 1) == wait_ms - 1
    assert bucket.take(amount, now_ms + wait_ms)


def test_an_amount_above_the_cap_can_never_be_taken() -> None:
    bucket = Bucket(1_000, 60_000, 0)
    assert bucket.can_hold(1_000)
    assert not bucket.can_hold(1_001)
    assert bucket.wait_ms(1_001, 0) is None
    assert not bucket.take(1_001, 10**9)


def test_a_bucket_without_a_rate_is_a_budget() -> None:
    budget = Bucket(100, 0, 0)
    assert budget.take(60, 0)
    assert not budget.take(41, 10**9)
    assert budget.wait_ms(41, 10**9) is None
    assert budget.reset_ms(10**9) is None
    assert budget.settle(20, -(10**9)) == 0
    assert budget.take(60, 10**9)
    assert budget.wait_ms(0, 0) == 0


def test_debt_is_paid_before_anything_is_taken_and_is_bounded() -> None:
    bucket = Bucket(100, 60_000, 0)  # one unit a millisecond
    assert bucket.settle(-250, 0) == 50
    assert bucket.available(0) == -100
    assert not bucket.take(0, 99)
    assert bucket.take(0, 100)
    assert bucket.reset_ms(100) == 100
    assert bucket.take(100, 200)


def test_asking_what_there_is_counts_the_time_that_passed() -> None:
    bucket = Bucket(100, 60_000, 0, available=10)
    assert bucket.available(30) == 40
    assert bucket.available(30) == 40
    assert bucket.available(500) == 100


def test_it_begins_with_what_it_is_told() -> None:
    assert Bucket(100, 1, 0, available=7).available(0) == 7
    assert Bucket(100, 1, 0, available=700).available(0) == 100
    assert Bucket(100, 1, 0, available=-700).available(0) == -100


@pytest.mark.parametrize(("cap", "rate", "period_ms"), [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_what_is_no_bucket_is_said_to_be_none(cap: int, rate: int, period_ms: int) -> None:
    with pytest.raises(ValueError, match="no bucket"):
        Bucket(cap, rate, 0, period_ms=period_ms)
    with pytest.raises(ValueError, match="cannot be taken"):
        Bucket(1, 1, 0).take(-1, 0)
