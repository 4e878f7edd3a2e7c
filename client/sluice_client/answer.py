"""What a stream consists of for its reader: chunks, a notice that it began again, and the answer so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletionChunk

ChunkT = TypeVar("ChunkT")
Read = tuple[str, str | None, CompletionUsage | None]  # text and finish reason of the first choice


@dataclass(frozen=True, slots=True)
class Restarted:
    """The answer begins again, for the server lost what it had sent: throw away every chunk until now."""

    request_id: str
    restarts: int  # 1, 2, …


@dataclass(slots=True)
class Answer:
    """What has arrived. The text is of the first choice; after a restart it is the new answer's."""

    idempotency_key: str
    request_id: str = ""  # the key of the usage row; known when the response begins
    finish_reason: str | None = None
    usage: CompletionUsage | None = None  # only with `stream_options={"include_usage": True}`
    replayed: bool = False  # generated earlier, for the same idempotency key
    resumes: int = 0  # times that the connection was mended
    restarts: int = 0
    pieces: list[str] = field(default_factory=list, repr=False)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def begin_again(self) -> None:
        self.finish_reason, self.usage = None, None
        self.pieces.clear()

    def take(self, text: str, finish_reason: str | None, usage: CompletionUsage | None) -> None:
        if text:
            self.pieces.append(text)
        self.finish_reason = finish_reason or self.finish_reason
        self.usage = usage or self.usage


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[ChunkT]):
    """Where a generation is asked for, and how its chunks are read."""

    path: str
    chunk: Callable[..., ChunkT]  # of the fields of an event; nothing is validated
    read: Callable[[ChunkT], Read]


def _chat(chunk: ChatCompletionChunk) -> Read:
    for choice in chunk.choices:
        if choice.index == 0:
            return choice.delta.content or "", choice.finish_reason, chunk.usage
    return "", None, chunk.usage


def _completion(chunk: Completion) -> Read:
    for choice in chunk.choices:
        if choice.index == 0:
            return choice.text or "", choice.finish_reason, chunk.usage
    return "", None, chunk.usage


CHAT = Endpoint("/chat/completions", ChatCompletionChunk.model_construct, _chat)
COMPLETIONS = Endpoint("/completions", Completion.model_construct, _completion)
