"""How numbers look on every page; `frontend/static/js/format.js` is its twin. No Django here."""

from decimal import ROUND_HALF_UP, Decimal


def count_text(value: float) -> str:
    """12345 → 12,345."""
    return f"{_rounded(value):,}"


def rate_text(value: float) -> str:
    """One decimal below ten, none above: 7.4, 312, 84,000."""
    return f"{_rounded(value, '.1'):,}" if 0 < value < 9.95 else count_text(value)


def percent_text(share: float) -> str:
    """0.624 → 62 %."""
    return f"{_rounded(share * 100)} %"


def duration_text(ms: float) -> str:
    """850 ms, 12.4 s, 3 min 05 s, 2 h 05 min, 4 d 02 h."""
    if ms < 999.5:
        return f"{_rounded(ms)} ms"
    if ms < 59_950:
        return f"{_rounded(ms / 1_000, '.1')} s"
    seconds = int(_rounded(ms / 1_000))
    minutes, hours = seconds // 60, seconds // 3_600
    if minutes < 60:
        return f"{minutes} min {seconds % 60:02d} s"
    if hours < 24:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def _rounded(value: float, step: str = "1") -> Decimal:
    """Halves go up, as browsers round, so that the first paint and the first update agree."""
    return Decimal(value).quantize(Decimal(step), ROUND_HALF_UP)
