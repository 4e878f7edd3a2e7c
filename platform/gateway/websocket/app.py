"""`/v1/stream`: many requests over one WebSocket, each answered in frames of its own.

The key comes in a header or a subprotocol, never in the address, which logs keep. What is refused before the
upgrade is refused with its HTTP status, where the server can say one.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from gateway.admission import key_authenticate
from gateway.auth import SCOPE_COMPLETIONS, scope_require
from gateway.errors import ApiError, LimitDetail
from gateway.http import JSON_HEADERS, Receive, Scope, Send
from gateway.runtime import Gateway
from gateway.websocket import frames
from gateway.websocket.frames import Ack, Ping, RequestCancel, RequestCreate
from gateway.websocket.request import SocketRequest
from tenants.contracts import KeyGrant

PROTOCOL = "sluice.v1"
KEY_PROTOCOL = "openai-insecure-api-key."
_MAX_ID_CHARACTERS = 128
_POLICY_VIOLATION = 1008
_GOING_AWAY = 1001
_REFUSAL_EXTENSION = "websocket.http.response"

logger = logging.getLogger(__name__)


async def stream_socket(
    gateway_of: Callable[[], Awaitable[Gateway]], scope: Scope, receive: Receive, send: Send
) -> None:
    """An ASGI application but for its first argument."""
    gateway = await gateway_of()
    await receive()  # websocket.connect
    headers: dict[bytes, bytes] = dict(scope["headers"])
    try:
        grant = _admit(gateway, headers, scope["subprotocols"])
    except ApiError as error:
        await _refuse(scope, send, error)
        return
    await send({"type": "websocket.accept", "subprotocol": _subprotocol(scope["subprotocols"])})
    await StreamSocket(gateway, grant, receive, send).run()


class StreamSocket:
    """One accepted connection. Ends with it, or when its key is revoked."""

    def __init__(self, gateway: Gateway, grant: KeyGrant, receive: Receive, send: Send) -> None:
        self.grant = grant
        self._gateway = gateway
        self._receive = receive
        self._asgi_send = send
        self._sending = asyncio.Lock()
        self._requests: dict[str, tuple[SocketRequest, asyncio.Task[None]]] = {}
        self._sent_at = time.monotonic()
        self._closing: tuple[int, str] | None = None
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._gateway.sockets.add(self)
        self._reader = asyncio.create_task(self._read())
        heart = asyncio.create_task(self._beat())
        try:
            await asyncio.wait([self._reader])
        finally:
            self._gateway.sockets.discard(self)
            heart.cancel()
            self._reader.cancel()
            tasks = [task for _, task in self._requests.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._closing is not None:
            code, reason = self._closing
            await self._asgi_send({"type": "websocket.close", "code": code, "reason": reason})

    def revoke(self) -> None:
        """The key is not valid any more."""
        self._close(_POLICY_VIOLATION, "the API key was revoked")

    def stop(self) -> None:
        """This process ends: the requests were told, nothing new begins."""
        self._close(_GOING_AWAY, "this gateway is stopping")

    def _close(self, code: int, reason: str) -> None:
        if self._closing is None and self._reader is not None:
            self._closing = (code, reason)
            self._gateway.spawn(self._reader_end(self._reader))

    async def _reader_end(self, reader: "asyncio.Task[None]") -> None:
        """Shortly after, so that errors of running requests go out first."""
        await asyncio.sleep(self._gateway.limits.socket_close_s)
        reader.cancel()

    async def _read(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            data = event.get("bytes") or (event.get("text") or "").encode("utf-8", "surrogatepass")
            try:
                self._take(data)
            except ApiError as error:
                await self._send(frames.error(error, None))

    def _take(self, data: bytes) -> None:
        """Raises ApiError."""
        if len(data) > self._gateway.limits.max_body_bytes:
            raise ApiError(
                "request_too_large", f"a frame may have {self._gateway.limits.max_body_bytes} bytes"
            )
        match frame := frames.frame_decode(data):
            case RequestCreate():
                self._begin(frame)
            case RequestCancel():
                if found := self._requests.get(frame.id):
                    found[1].cancel()
            case Ack():
                if found := self._requests.get(frame.id):
                    found[0].ack(frame.seq)
            case Ping():
                self._gateway.spawn(self._send(frames.PONG))

    def _begin(self, frame: RequestCreate) -> None:
        limit = self._gateway.limits.max_socket_requests
        if not 0 < len(frame.id) <= _MAX_ID_CHARACTERS:
            raise ApiError("invalid_value", f"id must have 1 to {_MAX_ID_CHARACTERS} characters", param="id")
        if frame.id in self._requests:
            raise ApiError("invalid_value", f"a request {frame.id!r} is running on this socket", param="id")
        if len(self._requests) >= limit:
            detail = LimitDetail(
                name="socket_requests", scope="key", subject=self.grant.public_id, held=limit, limit=limit
            )
            message = f"{limit} requests are running on this socket"
            raise ApiError("concurrent_requests", message, retry_after_ms=1_000, limit=detail)
        request = SocketRequest(self._gateway, self.grant, frame, self._send)
        task = asyncio.create_task(request.run())
        self._requests[frame.id] = (request, task)
        task.add_done_callback(lambda done: self._ended(frame.id, done))

    def _ended(self, request: str, task: "asyncio.Task[None]") -> None:
        self._requests.pop(request, None)
        if (
            not task.cancelled()
            and (error := task.exception()) is not None
            and not isinstance(error, OSError)
        ):
            logger.error("a request on a socket failed", exc_info=error)

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            await self._asgi_send({"type": "websocket.send", "text": frame.decode()})
            self._sent_at = time.monotonic()

    async def _beat(self) -> None:
        """So that proxies keep a silent connection open, and a dead one is noticed by the write."""
        interval_s = self._gateway.limits.socket_ping_s
        while True:
            await asyncio.sleep(max(self._sent_at + interval_s - time.monotonic(), 0.1))
            if time.monotonic() - self._sent_at >= interval_s:
                await self._send(frames.PING)


def _admit(gateway: Gateway, headers: Mapping[bytes, bytes], subprotocols: list[str]) -> KeyGrant:
    """Raises ApiError."""
    _origin_judge(gateway, headers)
    keys = [name.removeprefix(KEY_PROTOCOL) for name in subprotocols if name.startswith(KEY_PROTOCOL)]
    if keys and b"authorization" not in headers:
        headers = {**headers, b"authorization": b"Bearer " + keys[0].encode("ascii", "replace")}
    grant = key_authenticate(gateway, headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    held, limit = (
        sum(socket.grant.key_id == grant.key_id for socket in gateway.sockets),
        gateway.limits.max_sockets_per_key,
    )
    if held >= limit:
        detail = LimitDetail(name="sockets", scope="key", subject=grant.public_id, held=held, limit=limit)
        message = f"this API key has {held} sockets open, and may have {limit}"
        raise ApiError("concurrent_requests", message, retry_after_ms=1_000, limit=detail)
    return grant


def _origin_judge(gateway: Gateway, headers: Mapping[bytes, bytes]) -> None:
    """Browsers say which page opened the socket; other clients send no Origin."""
    origin = headers.get(b"origin", b"").decode("latin-1")
    if not origin or origin in gateway.settings.allowed_origins:
        return
    host = headers.get(b"host", b"").decode("latin-1")
    if origin.partition("://")[2] != host:
        raise ApiError("origin_not_allowed", f"pages of {origin[:200]} may not open this socket")


def _subprotocol(offered: list[str]) -> str | None:
    """Browsers fail a connection that picks none of what they offered."""
    if PROTOCOL in offered:
        return PROTOCOL
    return next(iter(offered), None)


async def _refuse(scope: Scope, send: Send, error: ApiError) -> None:
    if _REFUSAL_EXTENSION not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.code})
        return
    body = error.envelope()
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "websocket.http.response.start", "status": error.status}
    await send({**start, "headers": [*JSON_HEADERS, length, *error.headers]})
    await send({"type": "websocket.http.response.body", "body": body})
