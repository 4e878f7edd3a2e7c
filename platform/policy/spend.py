"""The periods that budgets are of: UTC days and months. Times are milliseconds since 1970. Pure."""

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


def _unix_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
