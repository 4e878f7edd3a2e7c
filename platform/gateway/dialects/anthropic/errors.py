"""Errors in Anthropic's words: its types and statuses, with our stable code and parameter as `details`."""

from typing import Any

from gateway import sse
from gateway.errors import ApiError

OVERLOADED = (529, "overloaded_error")
_OVERLOADED_CODES = frozenset({"overloaded", "gateway_stopping"})
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def status_and_type(error: ApiError) -> tuple[int, str]:
    if error.code in _OVERLOADED_CODES:
        return OVERLOADED
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    return error.status, _TYPES.get(error.status, fallback)


def error_body(error: ApiError, request_id: str) -> bytes:
    """One line of JSON; an event's data and a response's body are the same."""
    _, kind = status_and_type(error)
    details: dict[str, Any] = {"error_code": error.code, "param": error.param}
    if error.limit is not None:
        details["limit"] = error.limit
    if error.usage is not None:
        details["usage"] = error.usage
    inner = {"type": kind, "message": error.message, "details": details}
    return sse.json_line({"type": "error", "error": inner, "request_id": request_id})
