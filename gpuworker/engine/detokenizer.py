"""Token ids to text, one at a time: never half a character, never any part of a stop string. No torch here.

Two stages: `IncrementalDecoder` holds back the bytes of an unfinished character, `StopMatcher` holds back
text while it could still become a stop string.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from gpuworker.engine.stop_matcher import StopMatcher

CONTEXT_TOKENS = 4  # a decoder treats a token at the start of a text differently (leading space)
MAX_CONTEXT_TOKENS = 16  # looked through for a context that shows text and begins with a whole character
WINDOW_TOKENS = 12
MAX_HELD_TOKENS = 16  # longer runs of invalid bytes are let through
MAX_HELD_REPLACEMENTS = 3  # but for these: a character has at most 4 bytes
REPLACEMENT = "\ufffd"


class IncrementalDecoder:
    """Decodes a short window that starts where the text was complete, and returns what is new in it.

    Half a character at the end of the prompt is shown when the output completes it. When it does not, what
    stands for that half is shown only if `shows_prompt_end`.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], *, shows_prompt_end: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._window = self._context(prompt)
        text = self._decode(self._window)
        self._emitted = len(text.rstrip(REPLACEMENT))  # characters of the window
        self._prompt_end = "" if shows_prompt_end else text  # until something is shown
        self._complete = len(self._window)  # ids of the window whose text is all out
        self._held = 0
        self.prompt_pending = len(text) - self._emitted  # replacement characters at the end of the prompt

    def push(self, token: int) -> str:
        self._window.append(token)
        self._held += 1
        text = self._decode(self._window)
        stable = text.rstrip(REPLACEMENT)
        if stable == text:
            return self._settle(text, token)
        delta = self._take(stable)
        if delta:
            self._trim(text)
            self._held = 1
        elif self._held > MAX_HELD_TOKENS:
            delta = self._let_through(text)
        return delta

    def flush(self) -> str:
        """What is still held back: bytes of a character that will not be completed."""
        return self._take(self._decode(self._window))

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """The fewest of the last ids whose text begins with a whole character, or at least shows one."""
        second: list[int] = []
        for size in range(CONTEXT_TOKENS, MAX_CONTEXT_TOKENS + 1):
            window = list(prompt[-size:])
            text = self._decode(window)
            if text and not text.startswith(REPLACEMENT):
                return window
            if text.strip(REPLACEMENT) and not second:
                second = window
            if size >= len(prompt):
                break
        return second or window

    def _settle(self, text: str, token: int) -> str:
        delta = self._take(text)
        self._prompt_end, self._held = "", 0
        if not delta and not self._decode([token, token]):
            self._window.pop()  # a special token: it shows nothing and is no context either
        elif len(self._window) > WINDOW_TOKENS:
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

    def _let_through(self, text: str) -> str:
        """All but the last of a long run of invalid bytes; from now on one for each that comes."""
        delta = self._take(text[:-MAX_HELD_REPLACEMENTS])
        self._window, self._complete = self._window[-WINDOW_TOKENS:], 0
        self._emitted = len(self._decode(self._window)) - MAX_HELD_REPLACEMENTS
        return delta

    def _take(self, text: str) -> str:
        if self._prompt_end:
            self._emitted = _common_length(self._prompt_end, text)
        delta = text[self._emitted :]
        if delta:
            self._prompt_end, self._emitted = "", len(text)
        return delta

    def _decode(self, window: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(window, skip_special_tokens=True)
        return text


class Detokenizer:
    """Text of one choice. With `echo`, `prompt_text` comes before it; together they are what the tokenizer
    makes of all ids."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str], *, echo: bool = False
    ) -> None:
        self._decoder = IncrementalDecoder(tokenizer, prompt, shows_prompt_end=echo)
        self._matcher = StopMatcher(stops)
        self.prompt_text = ""  # no stop string is looked for in it
        if echo:
            text: str = tokenizer.decode(prompt, skip_special_tokens=True)
            self.prompt_text = text[: len(text) - self._decoder.prompt_pending]

    @property
    def stopped_by(self) -> str:
        """The stop string that matched, or "". After it nothing more will be shown."""
        return self._matcher.matched

    def push(self, token: int, *, may_stop: bool = True) -> str:
        """Text to show after this token. While it may not stop, text is shown without looking for stop
        strings, and a stop string that begins in it is not found later."""
        text = self._decoder.push(token)
        return self._matcher.feed(text) if may_stop else self._matcher.flush() + text

    def flush(self, *, is_cut: bool = False) -> str:
        """At the end of the row: everything held back, unless a stop string matched. `is_cut`: the model had
        not ended, so the bytes of an unfinished character stand for nothing and are left out."""
        if self.stopped_by:
            return ""
        held = self._decoder.flush()
        return self._matcher.feed(held.rstrip(REPLACEMENT) if is_cut else held) + self._matcher.flush()


def _common_length(first: str, second: str) -> int:
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
