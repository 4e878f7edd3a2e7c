"""What a dialect is: one endpoint's words for a request, its answer, and its errors. No input, no output.

Everything between the two translations is the same for all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from gateway.answer_parts import ChoiceEnd, Head, PromptRow, Row, Usage
from gateway.errors import ApiError
from gateway.generation import Generation
from gpuworker.wire.messages import TokenLogprobs


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a renderer must know of the request; kept with a stored answer, so that it can be sent again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A translated request."""

    generation: Generation
    options: Options


class Event(NamedTuple):
    """One server-sent event."""

    data: bytes  # JSON without line ends, or an end mark
    name: bytes = b""


class TokenText(Protocol):
    """The model's vocabulary, for log probabilities."""

    def token_bytes(self, token: int) -> bytes: ...

    def is_special(self, token: int) -> bool: ...


@dataclass(slots=True)
class WholeChoice:
    text: str
    logprobs: list[TokenLogprobs]
    end: ChoiceEnd


@dataclass(slots=True)
class Whole:
    """An answer that is sent in one piece. `prompt_logprobs[p][i]` is of token i + 1 of prompt p."""

    choices: list[WholeChoice]
    usage: Usage
    prompt_logprobs: list[list[TokenLogprobs]] = field(default_factory=list)


class Renderer(ABC):
    """Puts one answer into words. The same parts give the same bytes, so that an answer can be sent again."""

    delta_name = b""  # of the events that `delta` makes

    def opening(self) -> list[Event]:
        """Before anything else."""
        return []

    @abstractmethod
    def delta(self, row: Row) -> bytes:
        """Data of one event; empty for none. This is the token path: nothing that can be done once."""

    def prompt_delta(self, row: PromptRow) -> list[Event]:
        """Log probabilities of a prompt, before its choices' first rows."""
        return []

    @abstractmethod
    def closing(self, ends: Sequence[ChoiceEnd], usage: Usage) -> list[Event]:
        """Reasons, usage where it is wanted, and the end mark."""

    @abstractmethod
    def failed(self, error: ApiError) -> list[Event]:
        """The end of an answer that had begun."""

    @abstractmethod
    def whole(self, whole: Whole) -> bytes: ...

    def whole_headers(self, whole: Whole) -> list[tuple[bytes, bytes]]:
        return []


class Dialect(ABC):
    """Stateless; one object for each endpoint."""

    name: str  # in token logs and metrics; never changes its meaning: openai.chat
    options_type: type[Options]

    @abstractmethod
    def parse(self, body: bytes) -> Ask:
        """Raises ApiError naming the parameter at fault."""

    @abstractmethod
    def renderer(self, options: Options, head: Head, tokens: TokenText) -> Renderer:
        """`options` is of `options_type`."""

    @abstractmethod
    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        """Status and body of an answer that has not begun."""
