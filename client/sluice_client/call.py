"""One generation as HTTP: the request, the request that continues it, and the one that cancels it."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic
from urllib.parse import quote

import httpx2
from openai import AsyncStream, RequestOptions, Stream

from sluice_client.answer import Answer, ChunkT, Endpoint
from sluice_client.policy import ResumePolicy

CANCEL_TIMEOUT_S = 1.0
# The official client wants a class here; for `cast_to=Response` it returns the raw response all the same.
RAW_EVENTS, RAW_ASYNC_EVENTS = Stream[object], AsyncStream[object]


def idempotency_key_make(given: str | None) -> str:
    """A new one unless one is given. Raises ValueError for one that no server takes."""
    if given is None:
        return str(uuid.uuid4())
    if not (0 < len(given) <= 255 and given.isascii() and given.isprintable() and given == given.strip()):
        raise ValueError(
            "an idempotency key is 1 to 255 printable ASCII characters, with no blank at its ends"
        )
    return given


def usage_path(request_id: str) -> str:
    return f"/usage/{quote(request_id, safe='')}"


@dataclass(frozen=True, slots=True)
class StreamCall(Generic[ChunkT]):
    endpoint: Endpoint[ChunkT]
    body: Mapping[str, Any]
    extra_headers: Mapping[str, str]
    extra_body: Mapping[str, Any]
    policy: ResumePolicy
    connect_s: float

    def first(self, answer: Answer) -> RequestOptions:
        """Also of a new beginning: the same key again, so that it is not a second request."""
        headers = {
            **self.extra_headers,
            "Accept": "text/event-stream",
            "Idempotency-Key": answer.idempotency_key,
        }
        if self.policy.attempts:
            headers["X-Stream-Resume"] = "1"
        return RequestOptions(headers=headers, extra_json=self.extra_body, timeout=self._timeout())

    def again(self, answer: Answer) -> RequestOptions:
        """As `first`, but repeated by the resume policy alone."""
        return RequestOptions(**self.first(answer), max_retries=0)

    def resume(self, last_event_id: str) -> RequestOptions:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last_event_id}
        return RequestOptions(headers=headers, timeout=self._timeout(), max_retries=0)

    def _timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self.policy.silence_s, connect=self.connect_s)


def stream_path(stream: str) -> str:
    return f"/streams/{quote(stream, safe='')}"


def cancel_options() -> RequestOptions:
    """A second over all: half for the connection, half for the answer."""
    return RequestOptions(timeout=CANCEL_TIMEOUT_S / 2, max_retries=0)
