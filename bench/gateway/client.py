"""Load clients over plain sockets on the bench's loop: one small object a connection, one read an event.

Each event's text holds the time its token was sent, so one clock gives its whole way.
"""

import socket
import struct
import time

from bench.gateway.loop import READ, BenchFailed, Loop

_READ_BYTES = 65536
_TEXT_MARK = b'" @'  # a JSON string that begins with the mark of a time
_MARK_DIGITS = 16
_ERROR_MARK = b'"error"'
_RESET = struct.pack("ii", 1, 0)
_FAILED_BYTES = 300


def time_mark() -> str:
    """The text of a token: when it was sent, in microseconds of the monotonic clock."""
    return f" @{time.monotonic_ns() // 1000:0{_MARK_DIGITS}d}"


class Counts:
    """What all connections of one measurement saw together."""

    def __init__(self) -> None:
        self.events = 0
        self.reads = 0
        self.transits_us: list[int] = []
        self.first_tokens_us: list[int] = []
        self.answers_us: list[int] = []
        self.ended = 0


class ClientConnection:
    """A kept connection, one request at a time. `ended_ns` is 0 while an answer is on its way."""

    __slots__ = (
        "_buffer",
        "_counts",
        "_fd",
        "_is_in_body",
        "_is_stream",
        "_loop",
        "_sent_ns",
        "_socket",
        "ended_ns",
        "error",
        "events",
        "on_end",
    )

    def __init__(self, loop: Loop, port: int, counts: Counts) -> None:
        self._loop = loop
        self._counts = counts
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()
        self._buffer = b""
        self._is_in_body = self._is_stream = False
        self._sent_ns = 0
        self.ended_ns = 1
        self.error = b""  # the last event, when it is an error
        self.events = 0
        self.on_end = _nothing
        loop.add(self._fd, self._ready, READ)

    def request(self, data: bytes, *, is_stream: bool) -> None:
        self._buffer, self._is_in_body, self._is_stream = b"", False, is_stream
        self.events = self.ended_ns = 0
        self._sent_ns = time.monotonic_ns()
        if self._socket.send(data) != len(data):
            raise BenchFailed("a request did not fit into an empty socket buffer")

    def close(self, *, reset: bool = False) -> None:
        """With `reset` no port is left waiting for the last packets of many connections."""
        self._loop.remove(self._fd)
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()

    def _ready(self, _: int) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        now_ns = time.monotonic_ns()
        if not data:
            self.close()
            if not self.ended_ns:
                raise BenchFailed("the server closed a connection before the end of an answer")
            return
        buffer = self._buffer + data
        if not self._is_in_body:
            head_end = buffer.find(b"\r\n\r\n")
            if head_end < 0:
                self._buffer = buffer
                return
            if not buffer.startswith(b"HTTP/1.1 200 "):
                raise BenchFailed(buffer[-_FAILED_BYTES:].decode(errors="replace"))
            self._is_in_body = True
            if self._is_stream:
                buffer = buffer[head_end + 4 :]
        if self._is_stream:
            self._events_read(buffer, now_ns)
        else:
            self._answer_read(buffer, now_ns)

    def _events_read(self, buffer: bytes, now_ns: int) -> None:
        counts = self._counts
        last = buffer.rfind(b"\n\n")
        end = 0 if last < 0 else last + 2
        rest = buffer[end:]
        at = buffer.find(_TEXT_MARK, 0, end)
        if at >= 0:
            if not self.events:
                counts.first_tokens_us.append((now_ns - self._sent_ns) // 1000)
            now_us = now_ns // 1000
            while at >= 0:
                at += len(_TEXT_MARK)
                counts.transits_us.append(now_us - int(buffer[at : at + _MARK_DIGITS]))
                counts.events += 1
                self.events += 1
                at = buffer.find(_TEXT_MARK, at, end)
            counts.reads += 1
        if _ERROR_MARK in buffer:
            self.error = buffer
        if rest.endswith(b"0\r\n\r\n"):
            self._ended(now_ns)
        self._buffer = rest

    def _answer_read(self, buffer: bytes, now_ns: int) -> None:
        head, _, body = buffer.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        if len(body) < length:
            self._buffer, self._is_in_body = buffer, False
            return
        self._counts.answers_us.append((now_ns - self._sent_ns) // 1000)
        self._ended(now_ns)

    def _ended(self, now_ns: int) -> None:
        self.ended_ns = now_ns
        self._counts.ended += 1
        self.on_end()


def _nothing() -> None: ...


def connections_open(loop: Loop, port: int, number: int, counts: Counts) -> list[ClientConnection]:
    """A few at a time, so that the listen backlog is not what is measured."""
    opened = []
    for index in range(number):
        opened.append(ClientConnection(loop, port, counts))
        if index % 50 == 49:
            loop.run_for(0.005)
    return opened
