"""The name of a stream: its request's id, and from the second attempt on the attempt.

A later attempt is another text: no client may get the beginning of one and then the end of another.
"""

from typing import NamedTuple
from uuid import UUID

from gateway.errors import ApiError
from gateway.http.exchange import request_id_parse

_UUID_CHARACTERS = 36
_MAX_ATTEMPT_DIGITS = 9


class StreamId(NamedTuple):
    """Written `<request id>` or `<request id>-<attempt>`."""

    request_id: UUID
    attempt: int = 1

    @classmethod
    def parse(cls, text: str) -> "StreamId":
        """Raises ApiError."""
        name, suffix = text[:_UUID_CHARACTERS], text[_UUID_CHARACTERS:]
        attempt = suffix[1:] if suffix else "1"
        is_attempt = attempt.isascii() and attempt.isdigit() and len(attempt) <= _MAX_ATTEMPT_DIGITS
        if suffix and not (suffix[0] == "-" and is_attempt and int(attempt) > 1):
            raise ApiError("request_not_found", f"{text[:64]!r} is no stream's id")
        return cls(request_id_parse(name), int(attempt))

    def __str__(self) -> str:
        return f"{self.request_id}-{self.attempt}" if self.attempt > 1 else str(self.request_id)
