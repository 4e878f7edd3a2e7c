"""A scripted HTTP server on real sockets: it answers byte by byte, and sees when it is left."""

import contextlib
import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 10.0
REASONS = {200: "OK", 204: "No Content"}


class ClientGone(Exception):
    """The other side closed while it was written to."""


@dataclass
class Exchange:
    """One request and what the script does with its connection. Every connection carries one."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket = field(repr=False)
    left: threading.Event = field(default_factory=threading.Event, repr=False)
    left_at: float = 0.0

    def json(self) -> Any:
        return json.loads(self.body)

    def send(self, data: bytes) -> None:
        try:
            self.connection.sendall(data)
        except OSError as error:
            raise ClientGone from error

    def head(self, status: int = 200, *headers: str) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Refused')}", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode())

    def answer(self, status: int, body: Any, *headers: str) -> None:
        data = json.dumps(body).encode()
        self.head(status, "content-type: application/json", f"content-length: {len(data)}", *headers)
        self.send(data)

    def refuse(self, status: int, code: str, *headers: str, message: str = "refused") -> None:
        kind = "invalid_request_error"
        self.answer(
            status, {"error": {"message": message, "type": kind, "param": None, "code": code}}, *headers
        )

    def stream_head(self, request_id: str, *headers: str) -> None:
        """The body is chunked, so that its end is told from a broken connection."""
        self.head(
            200,
            "content-type: text/event-stream; charset=utf-8",
            "transfer-encoding: chunked",
            f"x-request-id: {request_id}",
            *headers,
        )

    def chunk(self, data: bytes) -> None:
        if data:
            self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Close with RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def wait_left(self) -> None:
        """Returns when the client has closed its side."""
        self.connection.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            while self.connection.recv(65536):
                pass
        self.left_at = time.monotonic()
        self.left.set()


Script = Callable[[Exchange], None]


class ScriptedServer:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        self.arrived: queue.Queue[Exchange] = queue.Queue()
        self.failures: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads: list[threading.Thread] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def of(self, method: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.method == method]

    def wait_for(self, method: str, *, within_s: float = PATIENCE_S) -> Exchange:
        """The next request of this method that nobody waited for."""
        until = time.monotonic() + within_s
        while True:
            exchange = self.arrived.get(timeout=max(until - time.monotonic(), 0.001))
            if exchange.method == method:
                return exchange

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._exchange, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _exchange(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                exchange = _read(connection)
                if exchange is not None:
                    self.exchanges.append(exchange)
                    self.arrived.put(exchange)
                    self.script(exchange)
            except (ClientGone, ConnectionError):
                pass
            except BaseException as failure:
                self.failures.append(failure)
                raise


def _read(connection: socket.socket) -> Exchange | None:
    """One request with its body; None where the client left before it was complete."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return None
        data += more
    block, _, body = data.partition(b"\r\n\r\n")
    line, *lines = block.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (entry.partition(": ") for entry in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    method, path, _ = line.split(" ")
    return Exchange(method, path, headers, body, connection)


@contextmanager
def serving(script: Script) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)
    assert server.failures == []
