"""Values over time before they are drawn: what is missing, what is added up, how high the axis goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

LINES = 6  # colours that can be told apart; the smallest lines are added up
USUAL = 0.97  # of all values; those above may tower over the others
TOWERS = 4.0  # times what is usual


@dataclass(frozen=True, slots=True)
class Line:
    """`values[i]` is of the i-th step of time; None where there was nothing to measure."""

    name: str
    values: Sequence[float | None]

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]


def bundled(lines: Sequence[Line]) -> Sequence[Line]:
    """At most LINES: the largest in their order, and the sum of all others."""
    if len(lines) <= LINES:
        return lines
    largest = sorted(range(len(lines)), key=lambda index: -sum(lines[index].known))[: LINES - 1]
    others = [line.values for index, line in enumerate(lines) if index not in largest]
    length = max(map(len, others))
    total = [sum(values[at] or 0.0 for values in others if at < len(values)) for at in range(length)]
    return [*(lines[index] for index in sorted(largest)), Line(f"{len(others)} others together", total)]


def axis_top(lines: Sequence[Line]) -> tuple[float, float | None]:
    """What the axis has to show; and the highest value when a few so tower above all others that they are cut
    off, because nothing would be seen of the others."""
    known = sorted(value for line in lines for value in line.known)
    if not known:
        return 0.0, None
    usual, highest = known[ceil(USUAL * len(known)) - 1], known[-1]
    return (1.5 * usual, highest) if 0 < TOWERS * usual < highest else (highest, None)
