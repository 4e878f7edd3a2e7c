"""The writing side of an HTTP connection: its socket, and what stands in for uvicorn's own parts."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.errors import ApiError
from gateway.http.exchange import request_id_new
from gateway.wake import Wake


class ClosingTransport:
    """What a request writes its answer to; closing it is `close`.

    What is written first, the head, waits for the body: one system call and one packet for both.
    """

    __slots__ = ("_held", "_loop", "_write", "close", "is_closing", "write")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, close: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._write = transport.write
        self._held = b""
        self.write = self._hold
        self.is_closing = transport.is_closing
        self.close = close

    def _hold(self, data: bytes) -> None:
        self._held = data
        self.write = self._join
        self._loop.call_soon(self._release)

    def _join(self, data: bytes) -> None:
        self._held += data
        self._release()

    def _release(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self.write = self._write
            self._write(held)


def socket_tune(transport: asyncio.Transport, send_buffer_bytes: int) -> None:
    """Neither loop turns Nagle's delay off for inherited listeners (`uvicorn --fd`): they pass for Unix ones.

    With it an answer's body waits up to 40 ms for the acknowledgement of its head. And the kernel would
    take megabytes for a client that reads nothing, unseen by the limits on unread events.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:  # asks the kernel what it really is
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if duplicate.family in (socket.AF_INET, socket.AF_INET6):
            duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def event_replace(owner: object, name: str) -> None:
    """Each of uvicorn's two events has one waiter at most, and is most of a kilobyte."""
    event, wake = getattr(owner, name), Wake()
    if event.is_set():
        wake.set()
    setattr(owner, name, wake)


def refusal_bytes(error: ApiError, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The whole answer to what never became a request; the connection is to be closed after it."""
    body = error.envelope()
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", str(request_id_new()).encode()),
        (b"connection", b"close"),
    ]
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body])
