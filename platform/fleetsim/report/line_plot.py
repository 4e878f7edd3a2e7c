"""Lines over time as SVG, told apart by colour and by dash. What is under the pointer is read out above the
lines by the style sheet alone: the page runs no script."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from fleetsim.report.figures import NONE, SIGNED, axis_labels, clock, ticks, time_ticks, with_unit
from fleetsim.report.lines import Line, axis_top, bundled
from fleetsim.report.markup import Html, joined, tag

WIDTH, WIDE, HEIGHT = 560.0, 1160.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 10.0, 22.0, 26.0
ROW = 14.0  # of text
COLUMNS = 96  # under the pointer
NAME = 20  # letters
READ_OUT = 3  # values in one row of text, of two


def line_plot(
    title: str,
    lines: Sequence[Line],
    step_s: float,
    unit: str,
    *,
    stepped: bool = False,
    top: float = 0,
    wide: bool = False,
) -> Html:
    """`stepped`: values hold until the next one, as levels do. `top`: the axis reaches at least so far.
    `wide`: for a card of two columns."""
    shown = bundled(lines)
    steps = max(len(line.values) for line in shown)
    scale = ticks(max(top, axis_top(shown)[0]))
    plot = _Frame(steps * step_s, scale[-1], WIDE if wide else WIDTH, TOP + ROW * (len(shown) > READ_OUT))
    return tag(
        "svg",
        tag("title", title),
        *(_grid_line(plot, *mark) for mark in zip(scale, axis_labels(scale, unit), strict=True)),
        *(_time_mark(plot, at_s) for at_s in time_ticks(plot.end_s, 14 if wide else 7)),
        *(
            tag("path", d=_path(plot, line, step_s, stepped), class_=f"line data-{index}")
            for index, line in zip(count(1), shown, strict=False)
        ),
        tag("g", *_columns(plot, shown, steps, step_s, unit), class_="columns"),
        viewBox=f"0 0 {plot.width:.0f} {HEIGHT:.0f}",
        class_="plot if-wide" if wide else "plot",
        role="img",
        aria_label=title,
    )


def legend(lines: Sequence[Line]) -> Html:
    return tag(
        "ul",
        *(
            tag(
                "li",
                tag(
                    "svg",
                    tag("path", d="M0 5H22", class_=f"line data-{index}"),
                    viewBox="0 0 22 10",
                    class_="key",
                    aria_hidden="true",
                ),
                line.name,
            )
            for index, line in zip(count(1), bundled(lines), strict=False)
        ),
        class_="legend",
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    end_s: float
    highest: float
    width: float
    top: float

    @property
    def right(self) -> float:
        return self.width - RIGHT

    def x(self, at_s: float) -> float:
        return LEFT + (self.right - LEFT) * at_s / self.end_s if self.end_s else LEFT

    def y(self, value: float) -> float:
        value = min(value, self.highest)
        return HEIGHT - BOTTOM - (HEIGHT - self.top - BOTTOM) * value / self.highest


def _grid_line(plot: _Frame, value: float, label: str) -> Html:
    y = plot.y(value)
    return joined(
        tag("line", x1=LEFT, x2=plot.right, y1=y, y2=y, class_="axis" if value == 0 else "grid"),
        tag("text", label, x=LEFT - 8, y=y + 4, text_anchor="end"),
    )


def _time_mark(plot: _Frame, at_s: float) -> Html:
    return tag("text", clock(at_s), x=plot.x(at_s), y=HEIGHT - 8, text_anchor="middle")


def _path(plot: _Frame, line: Line, step_s: float, stepped: bool) -> str:
    """Broken where there is no value."""
    path, command = [], "M"
    for index, value in enumerate(line.values):
        if value is None:
            command = "M"
            continue
        start, end, y = plot.x(index * step_s), plot.x((index + 1) * step_s), plot.y(value)
        for x in (start, end) if stepped else ((start + end) / 2,):
            path.append(f"{command}{x:.1f} {y:.1f}")
            command = "L"
    return "".join(path)


def _columns(plot: _Frame, lines: Sequence[Line], steps: int, step_s: float, unit: str) -> list[Html]:
    """Strips under the pointer, each with what it says."""
    stride = max(1, -(-steps // COLUMNS))
    columns = []
    for first in range(0, steps, stride):
        x = plot.x((first + 0.5) * step_s)
        left, right = plot.x(first * step_s), plot.x(min(steps, first + stride) * step_s)
        said = [_said(line, first, unit) for line in lines if first < len(line.values)]
        rows = (
            " · ".join([clock(first * step_s), *said[:READ_OUT]]),
            " · ".join(said[READ_OUT:]),
        )
        columns.append(
            tag(
                "g",
                tag("rect", x=left, y=0.0, width=right - left, height=HEIGHT - BOTTOM),
                tag("line", x1=x, x2=x, y1=plot.top, y2=HEIGHT - BOTTOM),
                *(
                    tag("text", row, x=plot.right, y=12.0 + ROW * index, text_anchor="end")
                    for index, row in enumerate(rows)
                    if row
                ),
            )
        )
    return columns


def _said(line: Line, at: int, unit: str) -> str:
    value = line.values[at]
    shown = NONE if value is None else with_unit(value, unit if unit in SIGNED else "")
    return f"{line.name[:NAME]} {shown}"
