"""Errors in TGI's words. What it has no type for keeps its status, and our code is the type."""

from typing import Any

from gateway import sse
from gateway.errors import ApiError

VALIDATION = (422, "validation")
GENERATION = (424, "generation")
OVERLOADED = (429, "overloaded")
INCOMPLETE = (500, "incomplete_generation")
_BY_CODE = {
    "internal_error": GENERATION,
    "engine_error": GENERATION,
    "gateway_stopping": OVERLOADED,
    "overloaded": OVERLOADED,
    "insufficient_quota": (429, "insufficient_quota"),  # not by waiting: its own type, though TGI has none
    "gateway_lost": INCOMPLETE,
    "replica_lost": INCOMPLETE,
    "request_cancelled": INCOMPLETE,
    "slow_reader": INCOMPLETE,
    "stream_gap": INCOMPLETE,
    "usage_not_recorded": INCOMPLETE,
    "deadline_exceeded": (504, "incomplete_generation"),
}
_BY_STATUS = {400: VALIDATION, 429: OVERLOADED}


def status_and_type(error: ApiError) -> tuple[int, str]:
    return _BY_CODE.get(error.code) or _BY_STATUS.get(error.status) or (error.status, error.code)


def error_body(error: ApiError) -> bytes:
    """One line of JSON; an event's data and a response's body are the same."""
    _, kind = status_and_type(error)
    body: dict[str, Any] = {"error": error.message, "error_type": kind}
    if error.limit is not None:
        body["limit"] = error.limit
    if error.usage is not None:
        body["usage"] = error.usage
    return sse.json_line(body)
