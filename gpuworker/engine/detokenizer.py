"""Token ids to text, one at a time: never half a character, never any part of a stop string. No torch here.

Two stages. `IncrementalDecoder` holds back the bytes of an unfinished character. `StopMatcher` holds back
text only while it could still become a stop string. Of several stop strings the one completed first wins,
among those completed by the same character the longest: a rule that does not depend on how text was split.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

CONTEXT_TOKENS = 4  # a decoder treats a token at the start of a text differently (leading space)
WINDOW_TOKENS = 12
MAX_HELD_TOKENS = 16  # a character has at most 4 bytes; longer runs of invalid bytes are let through
REPLACEMENT = "\ufffd"


class IncrementalDecoder:
    """Decodes a short window that starts where the text was complete, and returns what is new in it."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt[-CONTEXT_TOKENS:])
        self._emitted = len(self._decode(self._window).rstrip(REPLACEMENT))  # characters of the window
        self._complete = len(self._window)  # ids of the window whose text is all out
        self._held = 0

    def push(self, token: int) -> str:
        self._window.append(token)
        self._held += 1
        text = self._decode(self._window)
        stable = text.rstrip(REPLACEMENT)
        if stable == text:
            return self._settle(text)
        delta = self._take(stable)
        if delta:
            self._trim(text)
            self._held = 1
        elif self._held > MAX_HELD_TOKENS:
            delta = self._take(text)
            self._window, self._emitted, self._complete, self._held = [], 0, 0, 0
        return delta

    def flush(self) -> str:
        """What is still held back: bytes of a character that will not be completed."""
        return self._take(self._decode(self._window))

    def _settle(self, text: str) -> str:
        delta = self._take(text)
        self._held = 0
        if len(self._window) > WINDOW_TOKENS:
            self._window = self._window[self._complete :]
            self._emitted = len(self._decode(self._window))
        self._complete = len(self._window)
        return delta

    def _trim(self, text: str) -> None:
        """Keeps only the tokens that made the new text: where every token ends within a character, no later
        moment is better. They hold a whole character; decoding after it depends on nothing earlier."""
        if len(self._window) <= WINDOW_TOKENS:
            return
        window = self._window[-self._held :]
        kept = self._decode(window)
        settled = kept.lstrip(REPLACEMENT)  # a cut within a character shows as replacements at the start
        if settled and text.endswith(settled):
            self._window, self._complete = window, 0
            self._emitted = len(kept.rstrip(REPLACEMENT))

    def _take(self, text: str) -> str:
        delta = text[self._emitted :]
        self._emitted = max(self._emitted, len(text))
        return delta

    def _decode(self, window: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(window, skip_special_tokens=True)
        return text


class StopMatcher:
    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """The text that may be shown now. Empty once a stop string has matched."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.matched = True
            self._held = ""
            return text[: min(found)[1]]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class Detokenizer:
    """Text of one row."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._decoder = IncrementalDecoder(tokenizer, prompt)
        self._matcher = StopMatcher(stops)

    @property
    def stopped(self) -> bool:
        """A stop string matched; nothing more will be shown."""
        return self._matcher.matched

    def push(self, token: int) -> str:
        return self._matcher.feed(self._decoder.push(token))

    def flush(self) -> str:
        """At the end of the row: everything held back, unless a stop string matched."""
        if self.stopped:
            return ""
        return self._matcher.feed(self._decoder.flush()) + self._matcher.flush()
