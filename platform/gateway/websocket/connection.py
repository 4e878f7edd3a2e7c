"""One accepted socket: reads its client's frames, runs its requests, ends them all with it."""

import asyncio
import logging
import time
from datetime import UTC, datetime

from gateway.access.auth import SCOPE_COMPLETIONS, scope_require
from gateway.errors import ApiError, LimitDetail, stopping
from gateway.http.exchange import Receive, Scope, Send
from gateway.runtime import Gateway
from gateway.websocket import frames
from gateway.websocket.frames import Ack, Ping, RequestCancel, RequestCreate, RequestResume
from gateway.websocket.request import SocketRequest
from gateway.websocket.sources import Created, Resumed, Source
from gateway.websocket.upgrade import POLICY_VIOLATION
from gateway.websocket.writer import SERVER_EXTENSION, Server, SocketLost, SocketWriter
from tenants.contracts import KeyGrant

_GOING_AWAY = 1001
_INTERNAL_ERROR = 1011
_MAX_NOTICES = 64  # frames that are no request's; while so many wait nothing more is read
_STOP_FRACTION = 0.75  # of the margin before the server's limit, for requests to end by themselves

logger = logging.getLogger(__name__)


class StreamSocket:
    """`grant` is the key's at the upgrade; each request is admitted by what the key may do then."""

    def __init__(self, gateway: Gateway, grant: KeyGrant, scope: Scope, receive: Receive, send: Send) -> None:
        self.grant = grant
        self._gateway = gateway
        self._receive = receive
        self._asgi_send = send
        self._requests: dict[str, SocketRequest] = {}
        self._all_ended = asyncio.Event()
        self._notices: asyncio.Queue[bytes] = asyncio.Queue(_MAX_NOTICES)
        self._close: tuple[int, str] | None = None
        self._is_over = asyncio.Event()
        self._is_draining = False
        server: Server | None = scope.get("extensions", {}).get(SERVER_EXTENSION, {}).get("server")
        if server is not None:
            server.on_shutdown = self.drain
        self._writer = SocketWriter(send, server, gateway.limits.slow_reader_s, self._is_over.set)

    async def run(self) -> None:
        """Until its client leaves or does not read, its key is revoked, or the gateway stops."""
        parts = [asyncio.create_task(part()) for part in (self._read, self._notify, self._beat)]
        for part in parts:
            part.add_done_callback(self._part_ended)
        try:
            await self._is_over.wait()
        finally:
            self._writer.close()
            tasks = [*parts, *(request.task for request in self._requests.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._close is not None:
            await self._close_send(*self._close)

    def revoke(self) -> None:
        """The key is not valid any more."""
        error = ApiError("invalid_api_key", "this API key is no longer valid")
        wait_s = self._gateway.limits.socket_close_s
        self._close_begin(POLICY_VIOLATION, "the API key is no longer valid", error, wait_s)

    def drain(self) -> None:
        """The server stops: what runs may finish, nothing new begins. Idempotent."""
        self._is_draining = True
        if not self._requests:
            self.stop()

    def stop(self) -> None:
        """The requests were told to end. Idempotent."""
        wait_s = self._gateway.limits.drain_margin_s * _STOP_FRACTION
        self._close_begin(_GOING_AWAY, "this gateway is stopping", stopping(), wait_s)

    # -- frames -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        max_bytes = self._gateway.limits.max_socket_message_bytes
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            data = event.get("bytes") or (event.get("text") or "").encode("utf-8", "surrogatepass")
            if len(data) > max_bytes:
                error = ApiError("request_too_large", f"a message may have {max_bytes} bytes")
                await self._notices.put(frames.error(error, None, final=False))
            elif notice := self._take(data):
                await self._notices.put(notice)

    def _take(self, data: bytes) -> bytes | None:
        """What is to be said to it at once."""
        try:
            match frame := frames.frame_decode(data):
                case RequestCreate() | RequestResume():
                    return self._begin(frame)
                case RequestCancel():
                    if request := self._requests.get(frame.id):  # else it ended meanwhile
                        request.cancel()
                case Ack():
                    if request := self._requests.get(frame.id):
                        request.ack(frame.seq)
                case Ping():
                    return frames.PONG
        except ApiError as error:
            name = frames.id_of(data)
            return frames.error(error, name, final=name is not None and name not in self._requests)
        return None

    def _begin(self, frame: RequestCreate | RequestResume) -> bytes | None:
        """Raises ApiError."""
        limit = self._gateway.limits.max_socket_requests
        if self._is_draining or self._close is not None:
            raise stopping()
        if frame.id in self._requests:
            raise ApiError("invalid_value", "a request of this id is running on this socket", param="id")
        if len(self._requests) >= limit:
            detail = LimitDetail(
                name="socket_requests", scope="key", subject=self.grant.public_id, held=limit, limit=limit
            )
            message = f"{limit} requests are running on this socket"
            raise ApiError("concurrent_requests", message, retry_after_ms=1_000, limit=detail)
        grant = self._grant_now()
        source: Source
        if isinstance(frame, RequestCreate):
            source = Created(self._gateway, grant, frame)
        else:
            source = Resumed(self._gateway, grant, frame)
        self._requests[frame.id] = SocketRequest(
            self._gateway,
            grant,
            source,
            self._writer,
            name=frame.id,
            window=frame.window,
            on_end=self._request_ended,
        )
        self._all_ended.clear()
        return None

    def _grant_now(self) -> KeyGrant:
        """The key as it is now. Raises ApiError."""
        grant = self._gateway.snapshot().grants.get(self.grant.public_id)
        is_live = grant is not None and (grant.expires_at is None or grant.expires_at > datetime.now(UTC))
        if grant is None or not is_live or grant.digest != self.grant.digest:
            self.revoke()
            raise ApiError("invalid_api_key", "this API key is no longer valid")
        scope_require(grant, SCOPE_COMPLETIONS)
        return grant

    def _request_ended(self, request: SocketRequest) -> None:
        del self._requests[request.name]
        if not self._requests:
            self._all_ended.set()
            if self._is_draining:
                self.stop()

    async def _notify(self) -> None:
        while True:
            await self._writer.send(await self._notices.get())

    async def _beat(self) -> None:
        """So that proxies keep a silent connection open, and a dead one is noticed by the write."""
        interval_s = self._gateway.limits.socket_ping_s
        while True:
            silent_s = time.monotonic() - self._writer.last_sent_at
            if silent_s >= interval_s:
                await self._writer.send(frames.PING)
            else:
                await asyncio.sleep(interval_s - silent_s)

    # -- the end ------------------------------------------------------------------------------------------

    def _part_ended(self, part: "asyncio.Task[None]") -> None:
        if not part.cancelled():
            error = part.exception()
            if error is not None and not isinstance(error, SocketLost):
                logger.error("a socket failed", exc_info=error)
                self._close = self._close or (_INTERNAL_ERROR, "the gateway failed on this socket")
            self._is_over.set()

    def _close_begin(self, code: int, reason: str, error: ApiError, wait_s: float) -> None:
        if self._close is None:
            self._close = (code, reason)
            self._gateway.spawn(self._requests_end(error, wait_s))

    async def _requests_end(self, error: ApiError, wait_s: float) -> None:
        """Those that are served were told already, the others are told here."""
        await self._requests_wait(wait_s)
        for request in self._requests.values():
            request.end(frames.error(error, request.name, final=True))
        await self._requests_wait(self._gateway.limits.socket_close_s)
        self._is_over.set()

    async def _requests_wait(self, timeout_s: float) -> None:
        if self._requests:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._all_ended.wait()
            except TimeoutError:
                logger.info("requests of a socket that is being closed still run")

    async def _close_send(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(self._gateway.limits.final_write_s):
                await self._asgi_send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError):  # closed meanwhile, or not read in time
            self._writer.abort()
