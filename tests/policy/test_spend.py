"""The periods of budgets are those of UTC."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.spend import PeriodKind, period_of

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
