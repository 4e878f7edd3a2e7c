"""How long a request may take: as long as its client says that it waits, within our own bound."""

import re
import time
from collections.abc import Mapping
from uuid import UUID

from gateway.errors import ApiError, deadline_exceeded

DEADLINE_HEADER = b"x-request-deadline-ms"
READ_TIMEOUT_HEADER = b"x-stainless-read-timeout"  # seconds, as the official clients send it
_MIN_DEADLINE_MS = 1.0
_MIN_PATIENCE_S = 1.0
_NUMBER = re.compile(rb"[0-9]{1,18}(\.[0-9]{1,18})?")


def deadline_at(
    headers: Mapping[bytes, bytes], *, request_id: UUID, started_at: float, is_stream: bool, max_s: float
) -> float:
    """Monotonic seconds. A client's read timeout is a hint, and bounds a whole answer alone.

    Raises ApiError when the header is no number, or when the time is over already.
    """
    allowed_s = max_s
    if (stated := headers.get(DEADLINE_HEADER)) is not None:
        deadline_ms = _number(stated)
        if deadline_ms is None or deadline_ms < _MIN_DEADLINE_MS:
            name = DEADLINE_HEADER.decode()
            raise ApiError("invalid_value", f"{name} must be a number of milliseconds from 1", param=name)
        allowed_s = min(allowed_s, deadline_ms / 1000)
    elif not is_stream:
        patience_s = _number(headers.get(READ_TIMEOUT_HEADER, b""))
        if patience_s is not None and patience_s >= _MIN_PATIENCE_S:
            allowed_s = min(allowed_s, patience_s)
    now = time.monotonic()
    if now >= started_at + allowed_s:
        raise deadline_exceeded(
            "the deadline passed while the request arrived",
            request_id=request_id,
            limit_ms=round(allowed_s * 1000),
            used_ms=round((now - started_at) * 1000),
        )
    return started_at + allowed_s


def _number(text: bytes) -> float | None:
    """None for what is no plain decimal number: `float` also takes inf, nan and underscores."""
    return float(text) if _NUMBER.fullmatch(text.strip(b" \t")) else None
