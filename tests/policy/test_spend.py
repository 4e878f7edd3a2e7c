"""A budget is never passed, its remainder is never negative, and its periods are those of UTC."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.spend import PeriodKind, SpendBudget, period_of

DAY_MS = 86_400_000
LIMIT = 1_000
kinds = st.sampled_from(["day", "month"])
moments = st.integers(0, 4_000_000_000_000)


def unix_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("kind", "moment", "name", "begins", "ends"),
    [
        ("day", "2026-11-30T23:59:59", "2026-11-30", "2026-11-30", "2026-12-01"),
        ("day", "2028-02-29T00:00:00", "2028-02-29", "2028-02-29", "2028-03-01"),
        ("month", "2026-12-31T23:59:59", "2026-12", "2026-12-01", "2027-01-01"),
        ("month", "2027-02-01T00:00:00", "2027-02", "2027-02-01", "2027-03-01"),
        ("month", "2028-01-31T12:00:00", "2028-01", "2028-01-01", "2028-02-01"),
    ],
)
def test_periods_by_name(kind: PeriodKind, moment: str, name: str, begins: str, ends: str) -> None:
    period = period_of(kind, unix_ms(moment))
    assert (period.name, period.begins_ms, period.ends_ms) == (name, unix_ms(begins), unix_ms(ends))


@given(kinds, moments)
def test_periods_follow_each_other_without_a_gap(kind: PeriodKind, moment: int) -> None:
    period = period_of(kind, moment)
    assert period.holds(moment)
    assert not period.holds(period.ends_ms)
    assert period_of(kind, period.begins_ms) == period_of(kind, period.ends_ms - 1) == period
    assert period_of(kind, period.ends_ms).begins_ms == period.ends_ms


@given(kinds, st.lists(st.tuples(st.integers(0, DAY_MS // 2), st.integers(0, 1_500), st.floats(0, 1))))
def test_no_period_spends_more_than_its_budget(
    kind: PeriodKind, requests: list[tuple[int, int, float]]
) -> None:
    """Given requests that each cost their worst case at most and end one request later."""
    now_ms = unix_ms("2026-11-29")
    budget = SpendBudget(kind, LIMIT, now_ms)
    spent: dict[str, int] = {}
    running: tuple[int, int, int, str] | None = None
    for passed_ms, worst, part in requests:
        now_ms += passed_ms
        before = budget.remaining(now_ms)
        name = budget.period.name
        account = budget.reserve(worst, now_ms)
        assert (account is not None) == (worst <= before)
        assert budget.remaining(now_ms) == before - (worst if account is not None else 0) >= 0
        if running is not None:
            budget.commit(*running[:3])
            spent[running[3]] = spent.get(running[3], 0) + running[2]
        running = None if account is None else (account, worst, int(worst * part), name)
        assert budget.remaining(now_ms) >= 0
    assert all(total <= LIMIT for total in spent.values())


def test_what_was_not_needed_is_free_again() -> None:
    budget = SpendBudget("day", LIMIT, 0)
    account = budget.reserve(900, 0)
    assert account is not None
    assert budget.reserve(101, 0) is None
    budget.commit(account, 900, 300)
    assert (budget.remaining(0), budget.spent, budget.reserved) == (700, 300, 0)


def test_a_cost_above_its_worst_case_leaves_nothing_but_not_less() -> None:
    budget = SpendBudget("day", LIMIT, 0)
    account = budget.reserve(1_000, 0)
    assert account is not None
    budget.commit(account, 1_000, 1_500)
    assert budget.remaining(0) == 0


def test_a_new_period_begins_full_and_late_ends_do_not_touch_it() -> None:
    budget = SpendBudget("day", LIMIT, 0)
    account = budget.reserve(600, 0)
    assert account is not None
    assert budget.wait_ms(1_000) == DAY_MS - 1_000
    assert budget.remaining(DAY_MS) == LIMIT
    budget.commit(account, 600, 600)
    assert (budget.remaining(DAY_MS), budget.reserved) == (LIMIT, 0)


def test_a_clock_that_goes_back_over_midnight_spends_no_day_twice() -> None:
    budget = SpendBudget("day", LIMIT, DAY_MS - 1)
    assert budget.reserve(1_000, DAY_MS) is not None
    assert budget.remaining(DAY_MS - 1) == 0
    assert budget.remaining(DAY_MS) == 0
    assert budget.remaining(2 * DAY_MS) == LIMIT


def test_one_that_was_far_ahead_locks_nobody_out() -> None:
    budget = SpendBudget("day", LIMIT, 400 * DAY_MS)
    account = budget.reserve(1_000, 400 * DAY_MS)
    assert account is not None
    assert budget.remaining(0) == 0
    assert budget.wait_ms(0) == DAY_MS
    budget.commit(account, 1_000, 250)
    assert budget.remaining(0) == 750
    assert budget.remaining(DAY_MS) == LIMIT


def test_what_is_dearer_than_the_budget_never_fits() -> None:
    budget = SpendBudget("month", LIMIT, 0)
    assert budget.can_hold(LIMIT)
    assert not budget.can_hold(LIMIT + 1)
    with pytest.raises(ValueError, match="cannot be reserved"):
        budget.reserve(-1, 0)
