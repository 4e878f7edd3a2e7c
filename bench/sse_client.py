"""A lean streaming client for load: one request over a plain socket, a timestamp per event. No TLS."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


class RequestFailed(Exception):
    """The server did not answer 200, or ended the stream with an error event or without `[DONE]`."""


@dataclass
class Timeline:
    """Moments in seconds of the event loop's clock; `texts` holds the deltas that carried text."""

    sent: float
    events: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def first_token_ms(self) -> float:
        return (self.events[0] - self.sent) * 1000

    @property
    def gaps_ms(self) -> list[float]:
        return [(b - a) * 1000 for a, b in zip(self.events, self.events[1:], strict=False)]


async def completion_stream(
    base_url: str, api_key: str, body: dict[str, Any], *, deadline_ms: int | None = None
) -> Timeline:
    """POST /completions with `stream` and usage. Raises RequestFailed."""
    url = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    deadline = f"x-request-deadline-ms: {deadline_ms}\r\n" if deadline_ms else ""
    writer.write(
        f"POST {url.path}/completions HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        f"{deadline}Connection: close\r\n\r\n".encode()
        + payload
    )
    timeline = Timeline(sent=time.perf_counter())
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise RequestFailed((status + await reader.read(2_000)).decode(errors="replace"))
        while (await reader.readline()).strip():
            pass
        async for data in _events(reader):
            if data == b"[DONE]":
                return timeline
            _note(timeline, json.loads(data))
        raise RequestFailed("the stream ended without [DONE]")
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader) -> Any:
    """Payloads of `data:` lines of a chunked response; a chunk's size line never begins with `data:`."""
    while line := await reader.readline():
        if line.startswith(b"data: "):
            yield line[6:].strip()


def _note(timeline: Timeline, event: dict[str, Any]) -> None:
    if "error" in event:
        raise RequestFailed(str(event["error"]))
    if event.get("usage"):
        timeline.usage = event["usage"]
    for choice in event["choices"]:
        if choice.get("text"):
            timeline.events.append(time.perf_counter())
            timeline.texts.append(choice["text"])
