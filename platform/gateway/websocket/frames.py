"""The JSON frames of `/v1/stream`, both ways. docs/streaming.md describes them for clients."""

import msgspec

from gateway import sse
from gateway.errors import ApiError


class RequestCreate(msgspec.Struct, tag="request.create", forbid_unknown_fields=True, kw_only=True):
    """`body` is what the endpoint takes over HTTP. `window`: chunks that may be under way unacknowledged."""

    id: str
    body: msgspec.Raw
    endpoint: str = "/v1/chat/completions"
    idempotency_key: str | None = None
    resumable: bool = False
    deadline_ms: int | None = None
    window: int | None = None


class RequestCancel(msgspec.Struct, tag="cancel", forbid_unknown_fields=True):
    id: str


class Ack(msgspec.Struct, tag="ack", forbid_unknown_fields=True):
    """Everything up to chunk `seq` was taken in."""

    id: str
    seq: int


class Ping(msgspec.Struct, tag="ping"):
    pass


class Pong(msgspec.Struct, tag="pong"):
    pass


Frame = RequestCreate | RequestCancel | Ack | Ping | Pong
_decoder = msgspec.json.Decoder(Frame)

PING = b'{"type":"ping"}'
PONG = b'{"type":"pong"}'


def frame_decode(data: bytes) -> Frame:
    """Raises ApiError."""
    try:
        frame: Frame = _decoder.decode(data)
        return frame
    except msgspec.ValidationError as error:
        raise ApiError("invalid_value", f"this is no frame of this protocol: {error}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError("invalid_json", f"the frame is not valid JSON: {error}") from None


class ChunkFraming:
    """An answer's events as frames: `chunk` with its number, and `done` for the end mark."""

    __slots__ = ("_id",)

    def __init__(self, request: str) -> None:
        self._id = msgspec.json.encode(request)

    def __call__(self, number: int, name: bytes, data: bytes) -> bytes:
        head = b'","id":' + self._id + b',"seq":' + str(number).encode()
        if data == sse.DONE:
            return b'{"type":"done' + head + b"}"
        return b'{"type":"chunk' + head + b',"data":' + data + b"}"


def accepted(request: str, request_id: str, *, replayed: bool) -> bytes:
    frame = {"type": "request.accepted", "id": request, "request_id": request_id, "replayed": replayed}
    return msgspec.json.encode(frame)


def response(request: str, body: bytes) -> bytes:
    """A whole answer."""
    return b'{"type":"response","id":' + msgspec.json.encode(request) + b',"data":' + body + b"}"


def error(failure: ApiError, request: str | None) -> bytes:
    """`error` is the envelope's; retry_after_ms as the HTTP header would say it."""
    envelope = msgspec.json.decode(failure.envelope())
    frame = {"type": "error", "id": request, "status": failure.status, **envelope}
    if failure.retry_after_ms is not None:
        frame["retry_after_ms"] = failure.retry_after_ms
    return msgspec.json.encode(frame)
