"""Server-sent events out of bytes, by the rules of the WHATWG (HTML, 9.2.6). Knows nothing of what they mean.

Ours because the official client hides event ids, and its decoder fails on blank lines once it has seen an id.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_EVENT_BYTES = 16 * 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event is larger than the decoder may hold."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    name: str
    data: str
    id: str  # the last one that was sent, with this event or before it
    has_id: bool = True  # with this event


class EventDecoder:
    """For one connection. What follows the last blank line is no event, and is dropped with the decoder."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.retry_ms: int | None = None
        self._max_event_bytes = max_event_bytes
        self._at_start = True
        self._after_cr = False
        self._unfinished = bytearray()
        self._held_bytes = 0  # of the lines of the event that is not complete
        self._name = ""
        self._data: list[str] = []
        self._id = ""
        self._has_id = False

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """Every event that these bytes complete. Raises EventTooLarge."""
        for line in self._lines(data):
            event = self._line(line)
            if event is not None:
                yield event

    def _lines(self, data: bytes) -> Iterator[bytes]:
        if not data:
            return
        if self._after_cr and data[0] == 0x0A:
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        *lines, unfinished = _LINE_END.split(data)
        for line in lines:
            self._hold(len(line))
            if self._unfinished:
                line = bytes(self._unfinished) + line
                self._unfinished.clear()
            if self._at_start:
                self._at_start = False
                line = line.removeprefix(_BYTE_ORDER_MARK)
            yield line
        self._hold(len(unfinished))
        self._unfinished += unfinished

    def _hold(self, count: int) -> None:
        self._held_bytes += count
        if self._held_bytes > self._max_event_bytes:
            raise EventTooLarge(f"an event of more than {self._max_event_bytes} bytes")

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self._id, self._has_id = value, True
        elif field == "retry" and value.isascii() and value.isdigit() and len(value) < 10:
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event = ServerSentEvent(self._name or "message", "\n".join(self._data), self._id, self._has_id)
        has_data = bool(self._data)
        self._name, self._data, self._has_id, self._held_bytes = "", [], False, 0
        return event if has_data else None
