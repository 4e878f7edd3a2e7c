"""Server-sent events out of bytes that arrive in any pieces (WHATWG HTML, 9.2.6). Only data is kept."""

MAX_EVENT_BYTES = 1 << 20


class BadStream(Exception):
    """The upstream sent what is no answer; the message says what."""


class EventSplitter:
    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Data of the events that are complete now. Raises BadStream for one that is too long."""
        lines = (self._rest + received if self._rest else received).split(b"\n")
        self._rest = lines.pop()
        data, events = self._data, []
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif data and line in (b"", b"\r"):
                events.append(data[0].rstrip(b"\r") if len(data) == 1 else _joined(data))
                data.clear()
        if len(self._rest) + sum(map(len, data)) > MAX_EVENT_BYTES:
            raise BadStream(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def end(self) -> list[bytes]:
        """An event that the end of the stream completes: some servers leave its last line break out."""
        return self.feed(b"\n\n")


def _joined(lines: list[bytes]) -> bytes:
    return b"\n".join(line.rstrip(b"\r") for line in lines)
