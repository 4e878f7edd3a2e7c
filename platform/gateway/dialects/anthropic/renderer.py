"""A message, whole or as the Messages API's events. One text block holds all of the text."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, Row, Usage
from gateway.dialects.anthropic.errors import error_body
from gateway.dialects.base import Event, Renderer, Whole
from gateway.errors import ApiError


class MessageRenderer(Renderer):
    delta_name = b"content_block_delta"

    def __init__(self, head: Head) -> None:
        self._head = head
        delta = {"type": "text_delta", "text": sse.JsonFrame.TEXT}
        self._frame = sse.JsonFrame({"type": "content_block_delta", "index": 0, "delta": delta})

    def opening(self) -> list[Event]:
        usage = {
            "input_tokens": sum(self._head.prompt_tokens),  # which of them were cached is known at the end
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
            "service_tier": "standard",
        }
        block = {"type": "text", "text": "", "citations": None}
        return [
            _event({"type": "message_start", "message": self._message([], None, usage)}),
            _event({"type": "content_block_start", "index": 0, "content_block": block}),
            _event({"type": "ping"}),
        ]

    def delta(self, row: Row) -> bytes:
        return self._frame.encode(row.text) if row.text else b""

    def closing(self, ends: Sequence[ChoiceEnd], usage: Usage) -> list[Event]:
        delta = {"type": "message_delta", "delta": _stop(ends[0]), "usage": _usage(usage)}
        return [
            _event({"type": "content_block_stop", "index": 0}),
            _event(delta),
            _event({"type": "message_stop"}),
        ]

    def failed(self, error: ApiError) -> list[Event]:
        return [Event(error_body(error, self._head.request_id), b"error")]

    def whole(self, whole: Whole) -> bytes:
        (choice,) = whole.choices
        content = [{"type": "text", "text": choice.text, "citations": None}]
        usage = {**_usage(whole.usage), "service_tier": "standard"}
        return sse.json_line(self._message(content, choice.end, usage))

    def _message(
        self, content: list[dict[str, Any]], end: ChoiceEnd | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        stop = {"stop_reason": None, "stop_sequence": None} if end is None else _stop(end)
        return {
            "id": f"msg_{UUID(self._head.request_id).hex}",
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            **stop,
            "stop_details": None,
            "usage": usage,
        }


def _event(payload: dict[str, Any]) -> Event:
    return Event(sse.json_line(payload), payload["type"].encode())


def _stop(end: ChoiceEnd) -> dict[str, str | None]:
    if end.reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(end.stopped_by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, Any]:
    """What was cached is not among the `input_tokens`: the API counts it apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
