"""Money by UTC day and month: the worst case is reserved, what it really cost is committed.

So a budget cannot be passed, whatever a stream does. Amounts are whole micro-USD; times are milliseconds
since 1970. Pure.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

PeriodKind = Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class Period:
    """`name`: 2026-11-30 or 2026-11. From `begins_ms` up to, not including, `ends_ms`."""

    name: str
    begins_ms: int
    ends_ms: int

    def holds(self, unix_ms: int) -> bool:
        return self.begins_ms <= unix_ms < self.ends_ms


def period_of(kind: PeriodKind, unix_ms: int) -> Period:
    """The UTC day or month that holds the moment."""
    moment = datetime.fromtimestamp(unix_ms // 1000, UTC)
    begins = moment.replace(hour=0, minute=0, second=0)
    if kind == "day":
        return Period(f"{begins:%Y-%m-%d}", _unix_ms(begins), _unix_ms(begins + timedelta(days=1)))
    begins = begins.replace(day=1)
    ends = (begins + timedelta(days=31)).replace(day=1)
    return Period(f"{begins:%Y-%m}", _unix_ms(begins), _unix_ms(ends))


class SpendBudget:
    """One budget over its periods. A clock that jumps back stays in the later period, so none is spent twice;
    when it is off by more than a whole period, what was spent stays and the earlier one goes on."""

    def __init__(self, kind: PeriodKind, limit: int, unix_ms: int) -> None:
        self.kind = kind
        self.limit = limit
        self.period = period_of(kind, unix_ms)
        self.spent = 0
        self.reserved = 0
        self._account = 0

    def remaining(self, unix_ms: int) -> int:
        """Never negative."""
        self._advance(unix_ms)
        return max(0, self.limit - self.spent - self.reserved)

    def reserve(self, worst: int, unix_ms: int) -> int | None:
        """The account it is reserved in, for `commit`; None: nothing changed."""
        if worst < 0:
            raise ValueError(f"{worst} micro-USD cannot be reserved")
        if worst > self.remaining(unix_ms):
            return None
        self.reserved += worst
        return self._account

    def commit(self, account: int, worst: int, actual: int) -> None:
        """Ends a reservation: `actual` was spent, the rest is free again. What ends after its period is in
        the ledger; the new period starts without it."""
        if account != self._account:
            return
        self.reserved -= worst
        self.spent += actual

    def can_hold(self, worst: int) -> bool:
        """False: the whole budget is smaller; waiting for the next period does not help."""
        return worst <= self.limit

    def wait_ms(self, unix_ms: int) -> int:
        """Until the next period."""
        self._advance(unix_ms)
        return self.period.ends_ms - unix_ms

    def _advance(self, unix_ms: int) -> None:
        begins_ms, ends_ms = self.period.begins_ms, self.period.ends_ms
        if unix_ms >= ends_ms:
            self.period = period_of(self.kind, unix_ms)
            self.spent = self.reserved = 0
            self._account += 1
        elif unix_ms < begins_ms - (ends_ms - begins_ms):
            self.period = period_of(self.kind, unix_ms)


def _unix_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
