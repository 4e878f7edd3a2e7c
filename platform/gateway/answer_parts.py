"""What happens to an answer, in no dialect: rows of text, ends of choices, and the end of all.

These are also the entries of the token log and of a stored answer, so their fields only ever grow.
"""

from typing import Protocol

import msgspec

from gateway.errors import ApiError
from gpuworker.wire.messages import TokenLogprobs


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The same in every event of an answer, however often it is sent."""

    request_id: str  # UUIDv7
    created: int  # Unix seconds
    model: str
    digest: str
    klass: str  # interactive | batch
    prompt_tokens: tuple[int, ...]  # of each prompt
    n: int = 1  # choices of each prompt
    seed: int = 0
    first_tokens: tuple[int, ...] = ()  # of each prompt, which no PromptRow tells: for an echo with logprobs

    @property
    def choices(self) -> int:
        return len(self.prompt_tokens) * self.n


class Row(msgspec.Struct, array_like=True, tag="row", frozen=True, gc=False):
    """Text of one choice that one step produced; `logprobs` of its tokens, where they were asked for."""

    choice: int
    count: int  # tokens; 0 for text that was held back, or an echoed prompt
    text: str
    logprobs: list[TokenLogprobs] = []


class PromptRow(msgspec.Struct, array_like=True, tag="prompt", frozen=True, gc=False):
    """Log probabilities of tokens `first`, `first + 1`, … of one prompt; its token 0 has none."""

    prompt: int
    first: int
    tokens: list[TokenLogprobs]


class ChoiceEnd(msgspec.Struct, array_like=True, tag="choice_end", frozen=True, gc=False):
    choice: int
    reason: str  # stop | length
    output_tokens: int
    stopped_by: str | int | None = None  # the stop string or the token id that ended it


class Usage(msgspec.Struct, array_like=True, tag="usage", frozen=True, gc=False):
    """Of all prompts and choices; what the ledger got."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Finished(msgspec.Struct, array_like=True, tag="finished", frozen=True, gc=False):
    """The usage is recorded: the client may be told that it is complete."""

    ends: list[ChoiceEnd]  # of every choice
    usage: Usage


class Sink(Protocol):
    """Where the parts of one answer go, in order; `finished` or `failed` is the last."""

    def row(self, row: Row) -> None: ...

    def prompt_row(self, row: PromptRow) -> None: ...

    def continued(self, number: int) -> None:
        """The replica was lost; the `number`-th goes on, with what may be other words than the lost one's."""

    def finished(self, finished: Finished) -> None: ...

    def failed(self, error: ApiError) -> None: ...
