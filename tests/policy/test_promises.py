"""Refused clients are told moments at which there is room for each of them."""

from hypothesis import given
from hypothesis import strategies as st

from policy.bucket import MINUTE_MS, Bucket
from policy.promises import HORIZON_MS, MOST, Promises


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3_000)), min_size=1, max_size=60),
    st.integers(1, 600),
)
def test_who_comes_when_it_was_told_is_served(asked: list[tuple[int, int]], rate: int) -> None:
    # Given an empty bucket, clients that ask for more one after the other, and come when they were told
    # (a bucket that is full for a millisecond loses what comes then, so this one is never quite full)
    bucket, promises, now_ms = Bucket(60, rate, 0, available=0), Promises(), 0
    told: list[tuple[int, int]] = []
    for amount, later_ms in [*asked, (0, 10 * HORIZON_MS)]:
        now_ms += later_ms
        # Then there is room for each, when nobody else takes any
        while told and told[0][0] <= now_ms:
            due_ms, due = told.pop(0)
            assert bucket.take(due, due_ms)
        wait_ms = bucket.wait_ms(amount, now_ms)
        assert wait_ms is not None
        if wait_ms and (waits_ms := promises.wait_ms(amount, wait_ms, rate, now_ms)) <= HORIZON_MS:
            told.append((now_ms + waits_ms, amount))


def test_who_is_told_later_comes_later_and_what_is_due_is_forgotten() -> None:
    promises = Promises()
    assert [promises.wait_ms(10, 10_000, 60, 0) for _ in range(6)] == [
        10_000, 20_000, 30_000, 40_000, 50_000, 60_000,
    ]  # fmt: skip
    # Further than a minute nothing is promised, so nobody is put behind it
    assert promises.wait_ms(10, 10_000, 60, 0) == 70_000
    assert promises.wait_ms(1, 1_000, 60, 0) == 61_000
    assert promises.wait_ms(10, 10_000, 60, 60_000) == 10_000


def test_a_limit_without_a_rate_has_nothing_to_spread() -> None:
    promises = Promises()
    assert [promises.wait_ms(1, 500, 0, 0) for _ in range(3)] == [500] * 3


def test_it_remembers_a_bounded_number() -> None:
    promises = Promises()
    for _ in range(3 * MOST):
        promises.wait_ms(1, 1, MINUTE_MS * 100, 0)
    assert len(promises._told) <= MOST
