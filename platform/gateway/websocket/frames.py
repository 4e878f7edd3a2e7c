"""The JSON frames of `/v1/stream`, both ways. docs/websocket.md describes them for clients."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway import sse
from gateway.errors import ApiError
from gateway.http.exchange import HeaderList

MAX_ID_CHARACTERS = 128
MAX_WINDOW = 4096
_MAX_NUMBER = 1 << 48
_MAX_ECHO = 300  # characters of what is wrong

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARACTERS)]
Window = Annotated[int, Meta(ge=1, le=MAX_WINDOW)]
Number = Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]


class RequestCreate(msgspec.Struct, tag="request.create", forbid_unknown_fields=True, kw_only=True):
    """`body` is what the endpoint takes over HTTP. `window`: chunks that may be under way unacknowledged."""

    id: Id
    body: msgspec.Raw
    endpoint: str = "/v1/chat/completions"
    idempotency_key: str | None = None
    resumable: bool = False
    deadline_ms: Annotated[int, Meta(ge=1, le=_MAX_NUMBER)] | None = None
    window: Window | None = None


class RequestResume(msgspec.Struct, tag="request.resume", forbid_unknown_fields=True, kw_only=True):
    """Everything after chunk `after` of a stream that began as resumable, on whichever connection."""

    id: Id
    request_id: str  # as `request.accepted` said it
    after: Number = 0
    window: Window | None = None


class RequestCancel(msgspec.Struct, tag="cancel", forbid_unknown_fields=True):
    id: Id


class Ack(msgspec.Struct, tag="ack", forbid_unknown_fields=True):
    """Everything up to chunk `seq` was taken in."""

    id: Id
    seq: Number


class Ping(msgspec.Struct, tag="ping"):
    pass


class Pong(msgspec.Struct, tag="pong"):
    pass


class _Named(msgspec.Struct):
    id: Id


Frame = RequestCreate | RequestResume | RequestCancel | Ack | Ping | Pong
_decoder = msgspec.json.Decoder(Frame)
_named = msgspec.json.Decoder(_Named)

PING = b'{"type":"ping"}'
PONG = b'{"type":"pong"}'


def continued(name: str, number: int) -> bytes:
    """The replica of a request was lost, and the `number`-th goes on with it."""
    return msgspec.json.encode({"type": "request.continued", "id": name, "attempt": number})


def frame_decode(data: bytes) -> Frame:
    """Raises ApiError."""
    try:
        frame: Frame = _decoder.decode(data)
        return frame
    except msgspec.ValidationError as error:
        raise ApiError("invalid_value", f"this is no frame of this protocol: {error}"[:_MAX_ECHO]) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError("invalid_json", f"the frame is not valid JSON: {error}"[:_MAX_ECHO]) from None


def id_of(data: bytes) -> str | None:
    """The request that a frame names which is otherwise wrong."""
    try:
        return _named.decode(data).id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


class ChunkFraming:
    """An answer's events as frames: `chunk` with its number, and `done` for the end mark.

    `last` is the number of the newest one, `is_done` whether it was an end mark: not all dialects have one.
    """

    __slots__ = ("_prefix", "_request", "is_done", "last")

    def __init__(self, request: str) -> None:
        self._request = msgspec.json.encode(request)
        self._prefix = b'{"type":"chunk","id":%b,"seq":' % self._request
        self.last = 0
        self.is_done = False

    def __call__(self, number: int, name: bytes, data: bytes) -> bytes:
        self.last = number
        if data == sse.DONE:
            self.is_done = True
            return self.done(number)
        return b'%b%d,"data":%b}' % (self._prefix, number, data)

    def done(self, number: int) -> bytes:
        return b'{"type":"done","id":%b,"seq":%d}' % (self._request, number)


def accepted(request: str, request_id: str, *, replayed: bool, headers: HeaderList) -> bytes:
    """`headers`: as a response over HTTP would have them, of quotas and degradation."""
    frame: dict[str, Any] = {"type": "request.accepted", "id": request, "request_id": request_id}
    frame["replayed"] = replayed
    if headers:
        frame["headers"] = {name.decode(): value.decode() for name, value in headers}
    return msgspec.json.encode(frame)


def response(request: str, body: bytes) -> bytes:
    """A whole answer."""
    return b'{"type":"response","id":%b,"data":%b}' % (msgspec.json.encode(request), body)


def cancelled(request: str) -> bytes:
    return msgspec.json.encode({"type": "cancelled", "id": request})


def error(failure: ApiError, request: str | None, *, final: bool) -> bytes:
    """`error` is the envelope's. `final`: the request of that id has ended, or never began."""
    envelope = msgspec.json.decode(failure.envelope())
    frame = {"type": "error", "id": request, "final": final, "status": failure.status, **envelope}
    if failure.retry_after_ms is not None:
        frame["retry_after_ms"] = failure.retry_after_ms
    return msgspec.json.encode(frame)
