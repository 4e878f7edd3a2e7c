"""HTTP/1.1 to one server, for answers that are streamed.

An own client since the common ones cost two to ten times as much for each event (docs/backends.md). One
exchange at a time on a connection; a few idle ones are kept.
"""

import asyncio
import ssl
from collections.abc import Callable

from gpuworker.backends.external.http_connection import Exchange, HttpConnection, Sink
from gpuworker.upstream_terms import Endpoint

MAX_IDLE = 64
IDLE_S = 15.0  # servers close idle connections, uvicorn after 5 s: what closes meanwhile is seen


class HttpClient:
    """`headers` go with every request. Called from the event loop only. `on_idle_lost`: the server closed a
    connection that was kept, so it may be another server by now."""

    def __init__(
        self,
        endpoint: Endpoint,
        headers: dict[str, str],
        *,
        connect_s: float,
        on_idle_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._endpoint = endpoint
        self._on_idle_lost = on_idle_lost
        self._connect_s = connect_s
        self._tls = ssl.create_default_context() if endpoint.is_tls else None
        lines = {"Host": endpoint.authority, "User-Agent": "sluice", **headers}
        if any(mark in value for value in lines.values() for mark in "\r\n\0"):
            raise ValueError("a header has a line break")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")
        self._idle: list[HttpConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, path: str, body: bytes, sink: Sink) -> Exchange:
        head = f"POST {self._endpoint.path}{path} HTTP/1.1\r\n".encode()
        fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return self._send(Exchange(b"".join((head, self._head, fields, body)), sink))

    def get(self, path: str, sink: Sink) -> Exchange:
        head = f"GET {self._endpoint.path}{path} HTTP/1.1\r\n".encode()
        return self._send(Exchange(b"".join((head, self._head, b"\r\n")), sink))

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        for task in self._tasks:
            task.cancel()

    # -- connections --------------------------------------------------------------------------------------

    def _send(self, exchange: Exchange) -> Exchange:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < IDLE_S:
                exchange.assign(connection)
                return exchange
            connection.abort()
        self._connect(exchange)
        return exchange

    def _connect(self, exchange: Exchange) -> None:
        task = asyncio.create_task(self._connected(exchange))
        exchange.connection, exchange.task = None, task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, exchange: Exchange) -> None:
        endpoint, loop = self._endpoint, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(self._finished, self._unused, self._idle_closed),
                    endpoint.host,
                    endpoint.port,
                    ssl=self._tls,
                )
        except (OSError, ssl.SSLError) as error:  # TimeoutError is an OSError
            exchange.end(f"cannot connect: {error or type(error).__name__}")
        else:
            exchange.assign(connection)

    def _finished(self, connection: "HttpConnection") -> None:
        if len(self._idle) < MAX_IDLE:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    def _idle_closed(self, connection: "HttpConnection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)
            self._on_idle_lost()

    def _unused(self, exchange: Exchange) -> None:
        """A kept connection was closed before it heard of the request: the server's patience was over."""
        self._connect(exchange)
