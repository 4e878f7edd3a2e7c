"""Every error a client can see: one table of stable codes, and the OpenAI envelope around them."""

import math
from collections.abc import Iterable

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
    "invalid_api_key": (401, "invalid_request_error"),
    "insufficient_scope": (403, "permission_error"),
    "model_not_allowed": (403, "permission_error"),
    "model_not_found": (404, "invalid_request_error"),
    "unknown_url": (404, "invalid_request_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_timeout": (408, "timeout"),
    "request_too_large": (413, "invalid_request_error"),
    "unsupported_encoding": (415, "invalid_request_error"),
    "queue_full": (429, "requests"),
    "headers_too_large": (431, "invalid_request_error"),
    "internal_error": (500, "server_error"),
    "engine_error": (500, "server_error"),
    "stream_gap": (500, "server_error"),
    "usage_not_recorded": (500, "server_error"),
    "gateway_stopping": (503, "server_error"),
    "overloaded": (503, "server_error"),
    "replica_lost": (503, "server_error"),
    "request_cancelled": (503, "server_error"),
    "slow_reader": (503, "server_error"),  # only ever seen as an event: the response has begun
    "deadline_exceeded": (504, "timeout"),
}

MAX_RETRY_AFTER_MS = 60_000  # openai-js sleeps whatever it is told: never tell it more


class ApiError(Exception):
    """Ends a request with a code of ERRORS; becomes an HTTP status, or an event once the stream has begun."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status, self.type = ERRORS[code]
        self.headers = list(headers)
        if retry_after_ms is not None:
            wait_ms = min(max(retry_after_ms, 1), MAX_RETRY_AFTER_MS)
            self.headers += [
                (b"retry-after", str(math.ceil(wait_ms / 1000)).encode()),
                (b"retry-after-ms", str(wait_ms).encode()),
            ]

    def envelope(self) -> bytes:
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )


def stopping() -> ApiError:
    message = "this gateway is stopping; the request may be sent again"
    return ApiError("gateway_stopping", message, retry_after_ms=1_000)


def overloaded(message: str, retry_after_ms: int = 1_000) -> ApiError:
    return ApiError("overloaded", message, retry_after_ms=retry_after_ms)
