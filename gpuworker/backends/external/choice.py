"""One choice of a request at an upstream: what it has given, what is held back, how it ended."""

from tokenizers import Tokenizer

from gpuworker.engine.stop_matcher import StopMatcher


class Choice:
    """`output` counts from what another replica gave (`emitted`), as everywhere."""

    __slots__ = ("has_ids", "index", "last_id", "lead", "matcher", "output", "reason", "stopped_by", "texts")

    def __init__(self, index: int, stops: list[str], emitted: int) -> None:
        self.index = index
        self.matcher = StopMatcher(stops)
        self.output = emitted
        self.reason = ""
        self.stopped_by: str | int | None = None
        self.last_id = -1
        self.has_ids = True
        self.lead = ""  # text before the first token's: the prompt, where it is echoed
        self.texts: list[str] = []  # of choices whose ids are not told, to count them

    def tail(self) -> str:
        """What was held back, and may be shown now that it ended."""
        tail, self.lead = self.lead + self.matcher.flush(), ""
        return tail

    def text_tokens(self, tokenizer: Tokenizer) -> int:
        """Of what the upstream produced, as far as we saw it, with the token that ended it."""
        ids = tokenizer.encode("".join(self.texts), add_special_tokens=False).ids
        return len(ids) + (self.reason == "stop" and not isinstance(self.stopped_by, str))
