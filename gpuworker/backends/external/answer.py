"""What any upstream's answer is translated to, and whom it is told."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpuworker.backends.external.event_stream import BadStream
from gpuworker.wire.messages import Submit, TokenLogprobs


class UpstreamError(BadStream):
    """The upstream says that the request failed. `status` as in HTTP; 500 where it tells none."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class WrongModel(BadStream):
    """The answer is of another model than was asked for."""


class AnswerTaker(Protocol):
    """Called for each event of an answer, from within the read callback."""

    def piece(self, choice: int, text: str, ids: list[int] | None, logprobs: list[TokenLogprobs]) -> None:
        """`ids` None: they are not told, the piece counts as one token."""

    def choice_finished(self, choice: int, reason: str, stopped_by: str | int | None) -> None:
        """`reason` is stop or length."""

    def usage(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None: ...


class Unsayable(Exception):
    """The request asks for what this upstream cannot do. Code and message are those of a refusal."""

    def __init__(self, message: str, code: str = "unservable") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """`ids` end with `submit.emitted` ids of output; `max_tokens` are those still to come."""

    submit: Submit
    ids: list[int]
    say: Callable[[], str]  # the ids as text, for upstreams that take none; raises Unsayable
    max_tokens: int
    stop_ids: list[int]  # beside those that end every text
    cache_salt: str  # of the tenant
    emitted_text: str
    echoed_text: str  # of the prompt, if it is to come first


class Dialect(Protocol):
    """How one kind of upstream is spoken to."""

    path: str
    identity_path: str

    def body(self, model: str, request: UpstreamRequest) -> bytes:
        """Raises Unsayable."""

    def take(self, event: bytes, taker: AnswerTaker) -> bool:
        """One event of an answer; True: it was the last. Raises BadStream, UpstreamError."""

    def identity_problem(self, body: bytes, model: str, revision: str, context_tokens: int) -> str:
        """What the upstream serves is not what is asked for: in which way. Raises BadStream."""

    def keeps_stops(self, stops: list[str]) -> bool:
        """Whether the upstream is told these stop strings, and leaves them in the text."""
