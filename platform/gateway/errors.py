"""Every error a client can see: one table of stable codes, and the OpenAI envelope around them."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import msgspec

# code -> (HTTP status, OpenAI error type). Codes never change their meaning; docs/streaming.md lists them.
ERRORS: dict[str, tuple[int, str]] = {
    "invalid_http": (400, "invalid_request_error"),
    "invalid_json": (400, "invalid_request_error"),
    "invalid_type": (400, "invalid_request_error"),
    "invalid_value": (400, "invalid_request_error"),
    "missing_required_parameter": (400, "invalid_request_error"),
    "unknown_parameter": (400, "invalid_request_error"),
    "unsupported_parameter": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "output_limit_exceeded": (400, "invalid_request_error"),
    "request_exceeds_quota": (400, "invalid_request_error"),
    "invalid_api_key": (401, "invalid_request_error"),
    "insufficient_scope": (403, "permission_error"),
    "model_not_allowed": (403, "permission_error"),
    "origin_not_allowed": (403, "permission_error"),
    "model_not_found": (404, "invalid_request_error"),
    "unknown_url": (404, "invalid_request_error"),
    "request_not_found": (404, "invalid_request_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_timeout": (408, "timeout"),
    "request_in_progress": (409, "idempotency_error"),
    "replay_not_available": (409, "idempotency_error"),
    "resume_expired": (410, "invalid_request_error"),
    "request_too_large": (413, "invalid_request_error"),
    "unsupported_encoding": (415, "invalid_request_error"),
    "idempotency_key_reused": (422, "idempotency_error"),
    "request_quarantined": (422, "invalid_request_error"),
    "upgrade_required": (426, "invalid_request_error"),
    "queue_full": (429, "requests"),
    "deadline_unmeetable": (429, "requests"),
    "concurrent_requests": (429, "requests"),
    "requests_per_minute": (429, "requests"),
    "tokens_per_minute": (429, "tokens"),
    "insufficient_quota": (429, "insufficient_quota"),
    "headers_too_large": (431, "invalid_request_error"),
    "internal_error": (500, "server_error"),
    "engine_error": (500, "server_error"),
    "stream_gap": (500, "server_error"),
    "usage_not_recorded": (500, "server_error"),
    "not_implemented": (501, "server_error"),
    "gateway_stopping": (503, "server_error"),
    "gateway_lost": (503, "server_error"),
    "overloaded": (503, "server_error"),
    "replica_lost": (503, "server_error"),
    "request_cancelled": (503, "server_error"),
    "slow_reader": (503, "server_error"),  # only ever seen as an event: the response has begun
    "deadline_exceeded": (504, "timeout"),
}

LIMIT_HEADER = b"x-sluice-limit"
# Clients repeat 409 and 5xx by themselves; the same request would come to the same end, and cost again.
_NOT_TO_BE_REPEATED = frozenset(
    {"deadline_exceeded", "insufficient_quota", "not_implemented", "replay_not_available"}
)
MAX_RETRY_AFTER_MS = 60_000  # openai-js sleeps whatever it is told: never tell it more


class LimitDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which limit, whose, how much of it is taken, and when it clears: the same in header and body.

    Of something that cannot be had at all now, which it is, and whose: there is no number to give.
    """

    name: str  # open_requests, queue, dispatcher, …
    scope: str  # gateway | model | tenant | key | request
    subject: str  # its name; of a key the public part, of a request the id
    used: int | None = None
    held: int | None = None  # by requests that still run
    limit: int | None = None
    clears_in_ms: int | None = None


class ApiError(Exception):
    """Ends a request with a code of ERRORS; becomes an HTTP status, or an event once the stream has begun."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
        limit: LimitDetail | None = None,
        usage: Mapping[str, int] | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status, self.type = ERRORS[code]
        self.retry_after_ms = retry_after_ms
        self.limit = limit
        self.usage = usage  # of the request that is spoken of, where its answer cannot be had
        self.headers = list(headers)
        if code in _NOT_TO_BE_REPEATED:
            self.headers.append((b"x-should-retry", b"false"))
        if limit is not None:
            self.headers.append((LIMIT_HEADER, _ascii_json(limit)))
        if retry_after_ms is not None:
            wait_ms = min(max(retry_after_ms, 1), MAX_RETRY_AFTER_MS)
            self.headers += [
                (b"retry-after", str(math.ceil(wait_ms / 1000)).encode()),
                (b"retry-after-ms", str(wait_ms).encode()),
            ]

    def envelope(self) -> bytes:
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        if self.limit is not None:
            error["limit"] = self.limit
        if self.usage is not None:
            error["usage"] = self.usage
        return msgspec.json.encode({"error": error})


def _ascii_json(limit: LimitDetail) -> bytes:
    """A tenant's name may have any character, a header may not."""
    return json.dumps(msgspec.to_builtins(limit), separators=(",", ":")).encode()


def stopping() -> ApiError:
    message = "this gateway is stopping; the request may be sent again"
    return ApiError("gateway_stopping", message, retry_after_ms=1_000)


def overloaded(message: str, retry_after_ms: int = 1_000, *, limit: LimitDetail | None = None) -> ApiError:
    return ApiError("overloaded", message, retry_after_ms=retry_after_ms, limit=limit)


def deadline_exceeded(message: str, *, request_id: UUID, limit_ms: int, used_ms: int) -> ApiError:
    """It will not clear: whoever sends the request again must give it more time."""
    limit = LimitDetail(
        name="deadline_ms", scope="request", subject=str(request_id), used=used_ms, limit=limit_ms
    )
    return ApiError("deadline_exceeded", message, limit=limit)
