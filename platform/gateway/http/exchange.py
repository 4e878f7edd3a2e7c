"""One HTTP exchange over ASGI: its headers, its id, and plain (not streamed) responses."""

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qs
from uuid import UUID

from gateway.errors import ApiError
from policy.ids import uuid7

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

SERVER_EXTENSION = "sluice.http"  # ASGI scope extension of our own server protocol: {"server": Server}
_REQUEST_ID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
JSON_HEADERS: HeaderList = [(b"content-type", b"application/json")]


class ClientLeft(Exception):
    """The client closed the connection before there was anything to answer."""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Names in lower case. Of one that occurs more than once the values are joined (RFC 9110 §5.3).

    So whoever expects one value sees that there are more: nobody before us may have chosen another one.
    """
    raw = scope["headers"]
    headers = dict(raw)
    if len(headers) != len(raw):
        headers = {name: b", ".join(value for other, value in raw if other == name) for name in headers}
    return headers


def request_id_new() -> UUID:
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))


def request_id_parse(text: str) -> UUID:
    """Raises ApiError. `UUID` alone also takes braces, URNs, underscores and other scripts' digits."""
    if not _REQUEST_ID.fullmatch(text):
        raise ApiError("request_not_found", f"{text[:64]!r} is no request id")
    return UUID(text)


class Server(Protocol):
    """What our own server protocol can do for the request it serves, beyond ASGI."""

    def abort(self) -> None:
        """Drop the connection."""

    def left_tell(self, callback: Callable[[], None] | None) -> None:
        """See `Exchange.left_tell`."""

    def write_now(self, data: bytes) -> bool:
        """See `Exchange.write_now`."""


class Exchange:
    """Owns what was already sent to this client; `started_at` is the monotonic time its headers arrived."""

    __slots__ = (
        "_server",
        "headers",
        "method",
        "path",
        "receive",
        "request_id",
        "scope",
        "send",
        "started_at",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = headers_of(scope)
        self._server: Server | None = scope.get("extensions", {}).get(SERVER_EXTENSION, {}).get("server")
        self.request_id = request_id_new()
        self.started_at = time.monotonic()
        self.status = 0

    @property
    def has_begun(self) -> bool:
        """From here on the status is the client's; errors can only be events."""
        return self.status != 0

    def query(self, name: str) -> str:
        """The last value of a query parameter; empty when there is none."""
        values = parse_qs(self.scope.get("query_string", b"").decode("latin-1"), max_num_fields=64).get(name)
        return values[-1] if values else ""

    def left_tell(self, callback: Callable[[], None] | None) -> bool:
        """Have `callback` called once when the client leaves, or nobody any more.

        False where the server does not offer it: then only `receive` tells.
        """
        if self._server is None:
            return False
        self._server.left_tell(callback)
        return True

    @property
    def write_now(self) -> Callable[[bytes], bool] | None:
        """Writes a part of a response that has begun without waiting; False when that cannot be done now.

        Only while no `body` is awaited. None where the server does not offer it.
        """
        return None if self._server is None else self._server.write_now

    def headers_forget(self) -> None:
        """They are not needed any more, while the response may take minutes."""
        self.headers = {}
        if isinstance(raw := self.scope["headers"], list):
            raw.clear()

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        elapsed_ms = int((time.monotonic() - self.started_at) * 1000)
        request_id = str(self.request_id).encode()
        own = [
            (b"x-request-id", request_id),
            (b"request-id", request_id),  # Anthropic's clients look here
            (b"openai-processing-ms", str(elapsed_ms).encode()),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})

    async def body(self, data: bytes, *, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    def abort(self) -> None:
        """Close the connection at once, where the server offers that (`gateway.http.protocol`)."""
        if self._server is not None:
            self._server.abort()

    async def respond(
        self, status: int, data: bytes, headers: Iterable[tuple[bytes, bytes]] = JSON_HEADERS
    ) -> None:
        length = (b"content-length", str(len(data)).encode())
        await self.begin(status, [*headers, length])
        await self.body(b"" if self.method == "HEAD" else data, more=False)
