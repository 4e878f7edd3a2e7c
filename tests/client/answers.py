"""An answer as a Sluice server sends it, in numbered events, and a script that breaks it off anywhere."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.client.server import Exchange

REQUEST_ID = "018f0000-0000-7000-8000-00000000000a"
STREAM_ID = f"{REQUEST_ID}-2"  # in event ids: with the attempt
WORDS = ("Hello", " wörld", " 你好", " 👩🏽‍🚀", "\u2028", 'line "end"\n')
TEXT = "".join(WORDS)
ENDINGS = ("closed", "reset", "ended")


def chat_events(words: Sequence[str] = WORDS, *, usage: bool = False) -> list[bytes]:
    """The data of each event, `[DONE]` included."""

    def chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _json({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": word}) for word in words]
    events.append(chunk({}, "stop"))
    if usage:
        counts = {"prompt_tokens": 3, "completion_tokens": len(words), "total_tokens": 3 + len(words)}
        events.append(
            _json({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counts})
        )
    return [*events, b"[DONE]"]


def completion_events(words: Sequence[str] = WORDS) -> list[bytes]:
    def chunk(text: str, reason: str | None) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
        return _json({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})

    return [*(chunk(word, None) for word in words), chunk("", "stop"), b"[DONE]"]


def numbered(events: Sequence[bytes], *, after: int = 0, stream_id: str = STREAM_ID) -> list[bytes]:
    """As they are sent, from event `after` + 1 on."""
    return [
        b"id: %b:%d\ndata: %b\n\n" % (stream_id.encode(), number, data)
        for number, data in enumerate(events, start=1)
        if number > after
    ]


def error_event(code: str, message: str = "it failed") -> bytes:
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    return b"event: error\ndata: %b\n\n" % _json({"error": error})


@dataclass
class Resumable:
    """Serves one answer. Connection i gets `cuts[i]` bytes of what it asks for; later ones get all of it.

    `keepalive` is put before every event, `split` says how many bytes one write has.
    """

    events: list[bytes] = field(default_factory=chat_events)
    cuts: Sequence[int] = ()
    ending: str = "closed"
    keepalive: bytes = b""
    split: int = 1 << 20
    on_resume: Callable[[Exchange, int], bool] = lambda _exchange, _times: False  # True: it has answered
    resumed: int = 0
    connections: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "DELETE":
            exchange.head(204)
            return
        after = 0
        if exchange.method == "GET":
            stream_id, _, number = exchange.headers["last-event-id"].rpartition(":")
            assert exchange.path == f"/v1/streams/{stream_id}"
            assert stream_id == STREAM_ID
            after = int(number)
            self.resumed += 1
            if self.on_resume(exchange, self.resumed):
                return
        with self._lock:
            index = self.connections
            self.connections += 1
        exchange.stream_head(REQUEST_ID if exchange.method == "POST" else "of-the-get")
        wire = b"".join(self.keepalive + event for event in numbered(self.events, after=after))
        whole = index >= len(self.cuts)
        self._send(exchange, wire if whole else wire[: self.cuts[index]])
        if whole or self.ending == "ended":
            exchange.end()
        elif self.ending == "reset":
            exchange.reset()

    def _send(self, exchange: Exchange, wire: bytes) -> None:
        for start in range(0, len(wire), self.split):
            exchange.chunk(wire[start : start + self.split])


def refusing(status: int, code: str, *headers: str) -> Callable[[Exchange, int], bool]:
    """For `on_resume`: every time."""

    def refuse(exchange: Exchange, _times: int) -> bool:
        exchange.refuse(status, code, *headers)
        return True

    return refuse


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
