"""The OpenAI objects of a response: chat completions and text completions, whole and in chunks."""

from abc import ABC, abstractmethod
from typing import Any

from billing.contracts import UsageRecord
from gateway import sse


class Reply(ABC):
    """Builds every object of one response; id, model and creation time are the same in all of them."""

    def __init__(self, stream_id: str, created: int, route_slug: str, digest: str, tier: str) -> None:
        self._common = {
            "id": stream_id,
            "created": created,
            "model": route_slug,
            "system_fingerprint": f"fp_{digest[:12]}",
            "service_tier": tier,
        }

    chunk_object = ""
    whole_object = ""

    def frame(self, *, include_usage: bool) -> sse.EventFrame:
        """The event of each piece of text."""
        return sse.EventFrame(self._chunk([self._text_choice(sse.EventFrame.TEXT)], include_usage))

    def opening(self, *, include_usage: bool) -> bytes:
        """Sent before the first text."""
        return b""

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """Finish event, usage event if wanted, and the end mark."""
        data = sse.event(self._chunk([self._finish_choice(finish_reason)], include_usage))
        if include_usage:
            data += sse.event(self._chunk([], include_usage) | {"usage": usage})
        return data + sse.DONE

    def whole(self, text: str, finish_reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        choice = self._whole_choice(text, finish_reason)
        return {**self._common, "object": self.whole_object, "choices": [choice], "usage": usage}

    def _chunk(self, choices: list[dict[str, Any]], include_usage: bool) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._common, "object": self.chunk_object, "choices": choices}
        if include_usage:
            chunk["usage"] = None
        return chunk

    @abstractmethod
    def _text_choice(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _finish_choice(self, finish_reason: str) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]: ...


class ChatReply(Reply):
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def opening(self, *, include_usage: bool) -> bytes:
        return sse.event(self._chunk([_delta({"role": "assistant", "content": ""})], include_usage))

    def _text_choice(self, text: str) -> dict[str, Any]:
        return _delta({"content": text})

    def _finish_choice(self, finish_reason: str) -> dict[str, Any]:
        return _delta({}, finish_reason)

    def _whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}


class CompletionReply(Reply):
    chunk_object = "text_completion"
    whole_object = "text_completion"

    def _text_choice(self, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": None}

    def _finish_choice(self, finish_reason: str) -> dict[str, Any]:
        return self._text_choice("") | {"finish_reason": finish_reason}

    def _whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        return self._text_choice(text) | {"finish_reason": finish_reason}


def _delta(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def usage_object(record: UsageRecord) -> dict[str, Any]:
    """What the client is told is what the ledger gets: both come from the record."""
    return {
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.output_tokens,
        "total_tokens": record.prompt_tokens + record.output_tokens,
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
    }
