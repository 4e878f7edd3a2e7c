"""One stream across its connections: what is new, what is whole, and what to do when a connection breaks.

Decides only: no input, no output, no waiting. Each reader brings its own.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic

import httpx2
import openai

from sluice_client.answer import Answer, ChunkT, Endpoint
from sluice_client.errors import StreamError, StreamLost
from sluice_client.policy import ResumePolicy, may_retry, retry_after_s
from sluice_client.sse import EventDecoder, EventTooLarge, ServerSentEvent

# Refusals of the server that was asked; any other code of a 5xx is what ended the stream itself.
_PASSING = frozenset({None, "overloaded", "gateway_stopping", "internal_error"})
_STREAM_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")  # it becomes part of a URL


class Broken(Exception):
    """The connection is of no more use, though it may still be open."""


class Progress(Generic[ChunkT]):
    """Events are numbered 1, 2, … by `id: <stream id>:<n>`: none is left out, none is given twice."""

    def __init__(
        self,
        endpoint: Endpoint[ChunkT],
        policy: ResumePolicy,
        answer: Answer,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.ended = False  # the server has nothing more to send, and nothing to cancel
        self._expired = False  # what was sent is gone at the server
        self._endpoint = endpoint
        self._policy = policy
        self._answer = answer
        self._clock = clock
        self._chance = chance
        self._decoder = EventDecoder()
        self._request: httpx2.Request | None = None
        self._stream_id = ""  # the request's, with the attempt where it is not the first
        self._number = 0  # of the last event received
        self._unnumbered = False  # an event without number: this server cannot continue the stream
        self._attempts = 0
        self._broken_at: float | None = None
        self._told_to_wait_s = 0.0
        self._cut_by: StreamError | None = None  # why the server broke the connection off

    @property
    def last_event_id(self) -> str:
        return f"{self.stream}:{self._number}"

    @property
    def stream(self) -> str:
        """By which the server knows it; empty before the response begins."""
        return self._stream_id or self._answer.request_id

    @property
    def from_start(self) -> bool:
        """Whether the next attempt is the first request again: there is nothing to resume."""
        return self._expired or self._number == 0

    @property
    def cancellable(self) -> bool:
        """Whether the server may go on generating after the connection is closed."""
        return self._policy.attempts > 0 and not self.ended and bool(self.stream)

    def connected(self, response: httpx2.Response) -> None:
        """A response with status 200, to the first request or to a later one."""
        self._request = response.request
        self._decoder = EventDecoder()
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "text/event-stream":
            raise self._no_event(
                f"the server answered {content_type or 'nothing'} instead of an event stream"
            )
        if response.request.method == "POST":
            named = response.headers.get("x-request-id", "")
            self._answer.request_id = named if _STREAM_ID.fullmatch(named) else ""
            self._answer.replayed = response.headers.get("idempotent-replayed") == "true"
            self._stream_id = ""

    def chunks(self, data: bytes) -> Iterator[ChunkT]:
        """What is new in these bytes; nothing after the end. Raises StreamError and Broken."""
        try:
            for event in self._decoder.feed(data):
                if not self._is_new(event):
                    continue
                if event.data.startswith("[DONE]"):
                    self.ended = True
                    return
                yield self._chunk(event)
        except EventTooLarge as error:
            raise self._no_event(f"the server sent {error}") from error

    def wait_s(self, cause: BaseException | None) -> float:
        """How long to wait before the next attempt. Raises StreamLost when there is to be none."""
        now = self._clock()
        if self._broken_at is None:
            self._broken_at = now
        self._attempts += 1
        wait_s = self._policy.wait_s(self._attempts, self._chance())
        told_s = max(self._told_to_wait_s, (self._decoder.retry_ms or 0) / 1000)
        self._told_to_wait_s = 0.0
        wait_s = max(wait_s, told_s)
        if self._policy.attempts == 0:
            raise self._lost("the connection broke, and this stream was not to be resumed") from cause
        if self._unnumbered:
            raise self._lost("the connection broke, and this server cannot resume streams") from cause
        if self._attempts > self._policy.attempts:
            raise self._lost(
                f"the connection broke and {self._attempts - 1} attempts to resume failed"
            ) from cause
        if now + wait_s - self._broken_at > self._policy.total_s:
            raise self._lost(
                f"the connection broke and was not mended in {self._policy.total_s:g} s"
            ) from cause
        return wait_s

    def refused(self, error: openai.APIStatusError) -> None:
        """The status of an attempt: returns when another one may help, else raises."""
        # A server that numbers its events knows about streams: its 404 means that this one is gone as well.
        if error.status_code in (404, 410) and not self.from_start:
            self._expire(error)
        elif error.status_code >= 500 and error.code not in _PASSING and not self.from_start:
            self.ended = True
            raise self._ended_by(error.body) from error
        elif not may_retry(error.status_code, error.response.headers):
            self.ended = True
            raise error
        else:
            self._told_to_wait_s = retry_after_s(error.response.headers)

    def mended(self) -> None:
        self._answer.resumes += 1

    def begin_again(self) -> bool:
        """The first request was sent again, and accepted; whether a reader has to forget what it has."""
        seen = self._number > 0
        if seen:
            self._answer.restarts += 1
            self._answer.begin_again()
        else:
            self._answer.resumes += 1
        self._number, self._expired = 0, False
        return seen

    def _expire(self, cause: BaseException) -> None:
        if self._cut_by is not None:
            self.ended = True
            raise self._cut_by
        if self._answer.restarts >= self._policy.restarts:
            raise self._lost(f"the server lost the answer {self._answer.restarts + 1} times") from cause
        self._expired = True

    def _is_new(self, event: ServerSentEvent) -> bool:
        stream_id, _, number = event.id.rpartition(":")
        numbered = number.isascii() and number.isdigit() and _STREAM_ID.fullmatch(stream_id)
        if not (event.has_id and numbered):
            self._unnumbered = not (self._number and event.name == "error")
            return True
        if self._number and stream_id != self._stream_id:
            raise Broken(f"an event of {stream_id} in the stream {self._stream_id}")
        if int(number) <= self._number:
            return False
        if int(number) > self._number + 1:
            raise Broken(f"event {number} came after event {self._number}")
        self._stream_id, self._number = stream_id, int(number)
        self._attempts, self._broken_at, self._cut_by = 0, None, None
        return True

    def _chunk(self, event: ServerSentEvent) -> ChunkT:
        body = self._object(event)
        if event.name == "error" or body.get("error"):
            error = self._ended_by(body.get("error"))
            if self._number and error.code == "gateway_lost":
                self._expire(error)
                raise Broken(error.message)
            if self._number and event.name == "error" and not event.has_id:
                self._cut_by = error  # this connection was broken off; the answer may go on
                raise Broken(error.message)
            self.ended = True
            raise error
        chunk = self._endpoint.chunk(**body)
        self._answer.take(*self._endpoint.read(chunk))
        return chunk

    def _object(self, event: ServerSentEvent) -> dict[str, Any]:
        try:
            body = json.loads(event.data)
        except ValueError as error:
            raise self._no_event("the server sent an event that is not JSON") from error
        if not isinstance(body, dict):
            raise self._no_event("the server sent an event that is not an object")
        return body

    def _ended_by(self, details: object) -> StreamError:
        message = details.get("message") if isinstance(details, dict) else None
        return self._error(str(message or "the server ended the stream by an error"), details)

    def _no_event(self, message: str) -> StreamError:
        return self._error(message, {"code": "invalid_event", "type": "server_error", "message": message})

    def _error(self, message: str, body: object) -> StreamError:
        assert self._request is not None, "errors are of responses"
        return StreamError(message, self._request, body=body, request_id=self._answer.request_id)

    def _lost(self, message: str) -> StreamLost:
        assert self._request is not None, "what was never connected cannot break"
        self.ended = True
        return StreamLost(
            message,
            self._request,
            request_id=self._answer.request_id,
            last_event_id=self.last_event_id,
            idempotency_key=self._answer.idempotency_key,
        )
