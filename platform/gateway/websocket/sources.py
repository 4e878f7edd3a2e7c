"""Where the answer of a request on a socket comes from: computed for a `request.create`, or resumed."""

import logging
import time
from abc import ABC, abstractmethod

from gateway.answers.served import FramingFor, Served
from gateway.answers.stream_id import StreamId
from gateway.dialects.registry import ENDPOINTS
from gateway.errors import ApiError
from gateway.http.exchange import request_id_new
from gateway.runtime import Gateway
from gateway.serving.resuming import expired, resume, stream_end
from gateway.serving.serve import RESUME_HEADER, serve
from gateway.serving.submission import Call
from gateway.websocket.frames import RequestCreate, RequestResume
from tenants.contracts import KeyGrant

logger = logging.getLogger(__name__)

_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


class Source(ABC):
    """`route` is its name in metrics; the first `after` events are not sent."""

    route: str
    after = 0

    @abstractmethod
    async def serve(self, framing_for: FramingFor) -> Served:
        """Once. Raises ApiError; then nothing is held."""

    @abstractmethod
    def end(self, served: Served) -> None:
        """Its client said that nobody wants it any more."""

    @abstractmethod
    def release(self) -> None:
        """What was only needed to serve it. Idempotent."""

    def as_told(self, error: ApiError) -> ApiError:
        return error


class Created(Source):
    """Raises ApiError. Its body counts among the bodies that the process holds until `release`."""

    def __init__(self, gateway: Gateway, grant: KeyGrant, frame: RequestCreate) -> None:
        if frame.endpoint not in _ENDPOINTS:
            message = f"endpoint must be one of {', '.join(_ENDPOINTS)}"
            raise ApiError("invalid_value", message, param="endpoint")
        headers: dict[bytes, bytes] = {}
        if frame.idempotency_key is not None:
            headers[b"idempotency-key"] = frame.idempotency_key.encode("utf-8", "replace")
        if frame.resumable:
            headers[RESUME_HEADER] = b"1"
        if frame.deadline_ms is not None:
            headers[b"x-request-deadline-ms"] = str(frame.deadline_ms).encode()
        body = bytes(frame.body)
        if len(body) > gateway.limits.max_body_bytes:
            message = f"the body is larger than {gateway.limits.max_body_bytes} bytes"
            raise ApiError("request_too_large", message, param="body")
        self.route = frame.endpoint
        self._gateway = gateway
        dialect, now = ENDPOINTS[frame.endpoint], time.monotonic()
        self._call: Call | None = Call(dialect, grant, headers, body, frame.endpoint, request_id_new(), now)
        gateway.bodies.hold(len(body))

    async def serve(self, framing_for: FramingFor) -> Served:
        assert self._call is not None
        return await serve(self._gateway, self._call, framing_for)

    def end(self, served: Served) -> None:
        """A duplicate only leaves: the first one may have listeners of its own."""
        job = self._gateway.job_find(served.grant.tenant_id, served.request_id)
        if job is not None and served.is_computed_here:
            job.cancel("cancelled")

    def release(self) -> None:
        if self._call is not None:
            self._gateway.bodies.release(len(self._call.body))
            self._call = None


class Resumed(Source):
    """Raises ApiError."""

    route = "/v1/streams/{id}"

    def __init__(self, gateway: Gateway, grant: KeyGrant, frame: RequestResume) -> None:
        self._gateway = gateway
        self._grant = grant
        self._stream_id = StreamId.parse(frame.request_id)
        self.after = frame.after

    async def serve(self, framing_for: FramingFor) -> Served:
        return await resume(self._gateway, self._grant, self._stream_id, self.after, framing_for)

    def release(self) -> None:
        """Nothing is held."""

    def as_told(self, error: ApiError) -> ApiError:
        return expired() if error.code == "gateway_lost" else error

    def end(self, served: Served) -> None:
        self._gateway.spawn(self._stream_end())

    async def _stream_end(self) -> None:
        try:
            await stream_end(self._gateway, self._grant, self._stream_id.request_id)
        except ApiError as error:
            logger.info("stream %s was not ended: %s", self._stream_id, error)
