"""Horizontal bars as SVG: nested percentiles of several groups, and shares against what is due."""

from collections.abc import Sequence
from dataclasses import dataclass

from fleetsim.report.figures import axis_labels, ticks, with_unit
from fleetsim.report.markup import Html, joined, tag
from fleetsim.report.result import Percentiles

WIDTH = 560.0
LEFT, RIGHT, TOP, BOTTOM = 132.0, 74.0, 6.0, 26.0
ROW, BAR = 32.0, 16.0
NAME = 20  # letters


@dataclass(frozen=True, slots=True)
class Share:
    """`due` is marked on the bar."""

    name: str
    part: float
    due: float
    emphasised: bool


def percentile_bars(title: str, groups: Sequence[tuple[str, Percentiles]], unit: str) -> Html:
    """Of each group a bar to p50, behind it one to p95, behind that one to p99; p95 in figures."""
    scale = ticks(max((group.p99 for _, group in groups), default=0))
    rows = []
    for index, (name, group) in enumerate(groups):
        top = TOP + index * ROW + (ROW - BAR) / 2
        bars = [
            tag("rect", x=LEFT, y=top, width=_length(value, scale[-1]), height=BAR, rx=2.0, class_=level)
            for level, value in (("p99", group.p99), ("p95", group.p95), ("p50", group.p50))
            if group.count
        ]
        figure = with_unit(group.p95, unit) if group.count else "none"
        rows.append(
            joined(_name(name, top), *bars, _figure(figure, LEFT + _length(group.p99, scale[-1]), top))
        )
    return _plot(title, rows, scale, unit)


def share_bars(title: str, shares: Sequence[Share]) -> Html:
    scale = ticks(max((max(share.part, share.due) for share in shares), default=0))
    rows = []
    for index, share in enumerate(shares):
        top = TOP + index * ROW + (ROW - BAR) / 2
        length, due = _length(share.part, scale[-1]), LEFT + _length(share.due, scale[-1])
        tone = "share emphasised" if share.emphasised else "share"
        rows.append(
            joined(
                _name(share.name, top),
                tag("rect", x=LEFT, y=top, width=length, height=BAR, rx=2.0, class_=tone),
                tag("line", x1=due, x2=due, y1=top - 4, y2=top + BAR + 4, class_="due"),
                _figure(with_unit(share.part, "share"), max(LEFT + length, due), top),
            )
        )
    return _plot(title, rows, scale, "share")


def _plot(title: str, rows: Sequence[Html], scale: Sequence[float], unit: str) -> Html:
    bottom = TOP + len(rows) * ROW
    height = bottom + BOTTOM
    grid = []
    for value, label in zip(scale, axis_labels(scale, unit), strict=True):
        x = LEFT + _length(value, scale[-1])
        grid.append(tag("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="axis" if value == 0 else "grid"))
        grid.append(tag("text", label, x=x, y=height - 8, text_anchor="middle"))
    return tag(
        "svg",
        tag("title", title),
        *grid,
        *rows,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        class_="plot",
        role="img",
        aria_label=title,
    )


def _length(value: float, highest: float) -> float:
    return (WIDTH - LEFT - RIGHT) * value / highest


def _name(name: str, top: float) -> Html:
    short = name if len(name) <= NAME else name[: NAME - 1] + "…"
    return tag("text", short, x=LEFT - 10, y=top + BAR - 4, text_anchor="end", class_="name")


def _figure(text: str, x: float, top: float) -> Html:
    return tag("text", text, x=x + 8, y=top + BAR - 4, class_="figure")
