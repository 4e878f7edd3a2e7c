"""Server-sent events as bytes. One JSON object per `data:` field, LF line ends, a blank line after each.

Never an `id:` field: with one, openai-python 3.57 fails on the next blank line without data.
"""

import msgspec

HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
PING = b": ping\n"  # one newline only: a blank line would dispatch an empty event in some clients
DONE = b"data: [DONE]\n\n"

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


def event(payload: object) -> bytes:
    encoded = msgspec.json.encode(payload)
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return b"data: " + encoded + b"\n\n"


def error_event(envelope: bytes) -> bytes:
    return b"event: error\ndata: " + envelope + b"\n\n"


class EventFrame:
    """An event that differs only in one string: everything around it is encoded once per stream."""

    __slots__ = ("prefix", "suffix")

    def __init__(self, build: object) -> None:
        """`build`: the payload, with `EventFrame.TEXT` where the string goes."""
        self.prefix, self.suffix = event(build).split(_MARK_JSON)

    TEXT = _MARK

    def encode(self, text: str) -> bytes:
        return self.prefix + json_string(text) + self.suffix
