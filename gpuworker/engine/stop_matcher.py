"""Finds stop strings in a text that arrives in pieces, and holds back only what may still become one.

Of several stop strings the one completed first wins, among those completed by the same character the longest:
a rule that does not depend on how the text was split. The cost of a piece grows with its own length alone,
whatever the stop strings are: Knuth, Morris & Pratt (1977), one automaton for each. No torch here.
"""

from collections.abc import Sequence

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 10_000


def stop_problem(stops: Sequence[str]) -> str:
    """What is wrong with a request's stop strings, or "". Empty ones are allowed and never match."""
    if len(stops) > MAX_STOPS:
        return f"{len(stops)} stop strings, {MAX_STOPS} are allowed"
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_CHARACTERS:
        return f"a stop string has {longest} characters, {MAX_STOP_CHARACTERS} are allowed"
    return ""


class StopMatcher:
    def __init__(self, stops: Sequence[str]) -> None:
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops) if stop]
        self._held = ""
        self.matched = ""  # the stop string that did

    def feed(self, text: str) -> str:
        """The text that may be shown now. Empty once a stop string has matched."""
        if self.matched:
            return ""
        if not self._automata or not text:
            return text
        text, fresh = self._held + text, len(self._held)
        for end in range(fresh, len(text)):
            completed = 0
            for automaton in self._automata:
                if automaton.step(text[end]):
                    completed = max(completed, automaton.length)
            if completed:
                begin = end + 1 - completed
                self.matched, self._held = text[begin : end + 1], ""
                return text[:begin]
        keep = max(automaton.reached for automaton in self._automata)
        shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back. What comes later is searched by itself."""
        held, self._held = self._held, ""
        for automaton in self._automata:
            automaton.reached = 0
        return held


class _Automaton:
    """`reached` is how much of the stop string's beginning the text ends with. Its table is made as far as
    the text has ever come, so that a long stop string costs nothing until it begins to appear."""

    __slots__ = ("_borders", "_stop", "length", "reached")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = [0, 0]  # by length of a beginning: its longest proper beginning that also ends it
        self.length = len(stop)
        self.reached = 0

    def step(self, char: str) -> bool:
        """Whether this character completes the stop string; after that nothing may be asked any more."""
        stop, reached = self._stop, self.reached
        while reached and stop[reached] != char:
            reached = self._borders[reached]
        if stop[reached] == char:
            reached += 1
            if reached == len(self._borders):
                self._extend()
        self.reached = reached
        return reached == self.length

    def _extend(self) -> None:
        last = len(self._borders) - 1  # its border is known; that of the beginning one longer is made
        border = self._borders[last]
        while border and self._stop[border] != self._stop[last]:
            border = self._borders[border]
        self._borders.append(border + (self._stop[border] == self._stop[last]))
