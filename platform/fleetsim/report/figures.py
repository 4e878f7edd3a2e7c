"""Numbers as people read them, and round steps for axes."""

from collections.abc import Sequence
from math import ceil, floor, isfinite, log10

SIGNED = ("ms", "share", "USD")  # shown with every number; what others count, the plot's words say
NONE = "\N{EN DASH}"  # where there is no number

_TIME_STEPS_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10_800,
    21_600,
    43_200,
    86_400,
)


def number(value: float) -> str:
    """Three digits that matter: 0.042, 4.29, 42.9, 429, 84,210; 42 for 42.0."""
    if not isfinite(value):
        return NONE
    size = abs(value)
    if size == 0 or size >= 100:
        return f"{value:,.0f}"
    digits = 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".")


def with_unit(value: float, unit: str) -> str:
    """`unit`: ms; share, which is from 0 to 1; USD; "" for plain numbers; any other is put behind."""
    match unit:
        case "share":
            return f"{number(100 * value)} %"
        case "USD":
            return f"${value:,.2f}"
        case "ms" if abs(value) >= 10_000:
            return f"{number(value / 1000)} s"
        case "":
            return number(value)
    return f"{number(value)} {unit}"


def axis_labels(scale: Sequence[float], unit: str) -> list[str]:
    """Short, and all alike."""
    highest = max(scale)
    if unit == "ms" and highest >= 10_000:
        return [f"{number(value / 1000)} s" for value in scale]
    if unit in SIGNED:
        return [with_unit(value, unit) for value in scale]
    if highest >= 1_000_000:
        return [f"{number(value / 1_000_000)} M" for value in scale]
    return [number(value) for value in scale]


def clock(at_s: float) -> str:
    """Time since the simulation began: 45 s, 1:30, 2:00:00."""
    whole = round(at_s)
    if whole < 60:
        return f"{number(at_s) if at_s != whole else whole} s"
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def ticks(highest: float, most: int = 5) -> list[float]:
    """From 0 in steps of 1, 2 or 5 times a power of ten, at most `most` steps; the last is not below
    `highest`. What is less than a billionth is nothing."""
    if highest < 1e-9 or not isfinite(highest):
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(highest / most))
    step = next(power * times for times in (1, 2, 5, 10) if power * times * most >= highest * (1 - 1e-9))
    return [step * count for count in range(ceil(highest / step - 1e-9) + 1)]


def time_ticks(end_s: float, most: int = 7) -> list[float]:
    """From 0 to `end_s` in steps that a clock has."""
    step = next(
        (step for step in _TIME_STEPS_S if step * most >= end_s), 86_400 * ceil(end_s / 86_400 / most)
    )
    return [float(step * count) for count in range(floor(end_s / step + 1e-9) + 1)]


def span(least: float, most: float) -> str:
    return f"{number(least)}\N{EN DASH}{number(most)}"
