"""Server-sent events as bytes: LF line ends, one `data:` line an event, a blank line after each."""

import msgspec

HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
PING = b": ping\n"  # one newline only: a blank line would dispatch an empty event in some clients
DONE = b"[DONE]"


def continued(number: int) -> bytes:
    """A comment, so that no client stumbles: the `number`-th replica goes on with this stream."""
    return b": resumed attempt=%d\n" % number


# Legal in JSON strings, but clients that split with str.splitlines() take them for line ends.
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_MARK = "\x00text\x00"
_MARK_JSON = msgspec.json.encode(_MARK)


def json_string(text: str) -> bytes:
    """`text` as a JSON string without anything that any client takes for a line end."""
    encoded = msgspec.json.encode(text)
    if not text.isascii():
        for raw, escaped in _LINE_ENDS:
            encoded = encoded.replace(raw, escaped)
    return encoded


def json_line(payload: object) -> bytes:
    """As JSON without anything that any client takes for a line end."""
    encoded = msgspec.json.encode(payload)
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return encoded


def frame(number: int, name: bytes, data: bytes) -> bytes:
    """An event without an `id:`: with one, openai-python 3.57 fails on the next blank line without data."""
    if name:
        return b"event: " + name + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


class NumberedFraming:
    """For clients that asked to resume: `id: <request id>:<number>`."""

    __slots__ = ("_prefix",)

    def __init__(self, request_id: str) -> None:
        self._prefix = b"id: " + request_id.encode() + b":"

    def __call__(self, number: int, name: bytes, data: bytes) -> bytes:
        if not number:
            return frame(number, name, data)
        return self._prefix + str(number).encode() + b"\n" + frame(number, name, data)


class JsonFrame:
    """JSON that differs only in one string: everything around it is encoded once per stream."""

    __slots__ = ("prefix", "suffix")

    def __init__(self, payload: object) -> None:
        """`payload` has `JsonFrame.TEXT` where the string goes."""
        self.prefix, self.suffix = json_line(payload).split(_MARK_JSON)

    TEXT = _MARK

    def encode(self, text: str) -> bytes:
        return self.prefix + json_string(text) + self.suffix
