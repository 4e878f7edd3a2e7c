"""What chat completions and completions share as answers: the common fields, the order of events, usage.

Deltas are the token path: everything around the text is encoded once per choice. Only where log probabilities
were asked for is an event built anew.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, Row, Usage
from gateway.dialects.base import Event, Options, Renderer, TokenText, Whole
from gateway.errors import ApiError
from gpuworker.wire.messages import TokenLogprobs


class OpenAIOptions(Options, frozen=True, kw_only=True):
    """Log probabilities: how many alternatives beside each token; -1 for none at all."""

    include_usage: bool = False
    logprobs: int = -1
    prompt_logprobs: int = -1


class OpenAIRenderer(Renderer):
    """Log probabilities are sent with the text that they belong to. Of a choice that a stop string ended,
    those whose text was never shown are never sent."""

    id_prefix = ""
    chunk_object = ""
    whole_object = ""

    def __init__(self, options: OpenAIOptions, head: Head, tokens: TokenText) -> None:
        self._options = options
        self._head = head
        self._tokens = tokens
        self._common = {
            "id": self.id_prefix + head.request_id.replace("-", ""),
            "created": head.created,
            "model": head.model,
            "system_fingerprint": f"fp_{head.digest[:12]}",
            "service_tier": "flex" if head.klass == "batch" else "default",
        }
        self._wants_logprobs = options.logprobs >= 0
        self._frames: dict[int, sse.JsonFrame] = {}
        self._held: dict[int, list[TokenLogprobs]] = {}  # of choices, until their text is shown

    def delta(self, row: Row) -> bytes:
        if self._wants_logprobs:
            return self._delta_with_logprobs(row)
        if not row.text:
            return b""
        frame = self._frames.get(row.choice)
        if frame is None:
            chunk = self._chunk([self._text_choice(row.choice, sse.JsonFrame.TEXT, None)])
            frame = self._frames[row.choice] = sse.JsonFrame(chunk)
        return frame.encode(row.text)

    def closing(self, ends: Sequence[ChoiceEnd], usage: Usage) -> list[Event]:
        chunks = [self._chunk([self._finish_choice(end, self._unsent(end))]) for end in ends]
        if self._options.include_usage:
            chunks.append(self._chunk([]) | {"usage": usage_object(usage)})
        return [*(Event(sse.json_line(chunk)) for chunk in chunks), Event(sse.DONE)]

    def failed(self, error: ApiError) -> list[Event]:
        return [Event(sse.json_line(msgspec.Raw(error.envelope())), b"error")]

    def whole(self, whole: Whole) -> bytes:
        body = {**self._common, "object": self.whole_object, "choices": self._whole_choices(whole)}
        return msgspec.json.encode(body | {"usage": usage_object(whole.usage)} | self._whole_extras(whole))

    def _delta_with_logprobs(self, row: Row) -> bytes:
        held = self._held.setdefault(row.choice, [])
        held.extend(row.logprobs)
        if not row.text:
            return b""
        logprobs = self._logprobs(row.choice, held)
        held.clear()
        return sse.json_line(self._chunk([self._text_choice(row.choice, row.text, logprobs)]))

    def _unsent(self, end: ChoiceEnd) -> dict[str, Any] | None:
        held = self._held.pop(end.choice, [])
        if not self._wants_logprobs or isinstance(end.stopped_by, str):
            return None
        return self._logprobs(end.choice, held)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._common, "object": self.chunk_object, "choices": choices}
        if self._options.include_usage:
            chunk["usage"] = None
        return chunk

    def _whole_extras(self, whole: Whole) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _logprobs(self, choice: int, rows: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Of the next tokens of a choice; None where there is nothing to tell."""

    @abstractmethod
    def _text_choice(self, choice: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]: ...

    @abstractmethod
    def _finish_choice(self, end: ChoiceEnd, logprobs: dict[str, Any] | None) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_choices(self, whole: Whole) -> list[dict[str, Any]]: ...


def finish(end: ChoiceEnd) -> dict[str, Any]:
    """`stop_reason` is vLLM's: the stop string or the token id, null for the model's own end."""
    return {"finish_reason": end.reason, "stop_reason": end.stopped_by}


def usage_object(usage: Usage) -> dict[str, Any]:
    """What the client is told is what the ledger got."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
