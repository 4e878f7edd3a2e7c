"""A scripted dispatcher and one scripted worker on the bench's loop, speaking the wire over Unix sockets.

Every request is placed at once. What the worker says is up to `on_submit` and `on_cancel`.
"""

import socket
from collections.abc import Callable
from pathlib import Path

from bench.gateway.frames import end_of, frame_of
from bench.gateway.loop import READ, WRITE, BenchFailed, Loop
from gpuworker.wire.framing import FrameDecoder, encode
from gpuworker.wire.messages import (
    HEARTBEAT_MS,
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    Frame,
    Heartbeat,
    Hello,
    Placed,
    Submit,
    Welcome,
    WorkerUp,
    new_incarnation,
)

WIRE_SECRET = "bench"
_MAX_UNSENT_BYTES = 64 << 20
_BACKLOG = 8


class WireSocket:
    """One accepted connection; `send` never blocks."""

    def __init__(
        self, loop: Loop, accepted: socket.socket, on_message: Callable[["WireSocket", AnyMessage], None]
    ) -> None:
        accepted.setblocking(False)
        self._loop = loop
        self._socket = accepted
        self._on_message = on_message
        self._decoder = FrameDecoder()
        self._unsent = bytearray()
        self.is_open = True
        loop.add(accepted.fileno(), self._ready)

    def send(self, message: AnyMessage) -> None:
        if not self.is_open:
            return
        data = encode(message)
        if self._unsent:
            self._unsent += data
            if len(self._unsent) > _MAX_UNSENT_BYTES:
                raise BenchFailed("the gateway does not read what the worker sends")
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self._unsent += data[sent:]
            self._loop.modify(self._socket.fileno(), READ | WRITE)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.remove(self._socket.fileno())
            self._socket.close()

    def _ready(self, events: int) -> None:
        if events & WRITE and self._unsent:
            del self._unsent[: self._socket.send(self._unsent)]
            if not self._unsent:
                self._loop.modify(self._socket.fileno(), READ)
        if not events & ~WRITE:
            return
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.close()
            return
        for message in self._decoder.feed(data):
            self._on_message(self, message)


class Fleet:
    """`on_cancel` gets the sid; the worker has then answered with the end of that row already."""

    def __init__(self, loop: Loop, folder: Path, digest: str, model: str) -> None:
        self._loop = loop
        self._folder = folder
        self._digest = digest
        self._model = model
        self._incarnation = new_incarnation()
        self._dispatcher: WireSocket | None = None
        self._worker: WireSocket | None = None
        self._listeners: dict[str, socket.socket] = {}
        self.on_submit: Callable[[Submit], None] = _submit_ignore
        self.on_cancel: Callable[[int], None] = _cancel_ignore
        self._listen("dispatcher")
        self._listen("worker")
        loop.every(HEARTBEAT_MS / 1000, self._beat)

    @property
    def dispatch_address(self) -> str:
        return f"unix:{self._folder / 'dispatcher'}"

    @property
    def is_joined(self) -> bool:
        """The gateway is connected to both."""
        return self._worker is not None

    def worker_kill(self) -> None:
        """As the kernel does for a process that was killed: its sockets close."""
        assert self._worker is not None
        self._worker.close()
        listener = self._listeners.pop("worker")
        self._loop.remove(listener.fileno())
        listener.close()

    def emit(self, frame: Frame) -> None:
        assert self._worker is not None
        self._worker.send(frame)

    def _listen(self, role: str) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._folder / role))
        listener.listen(_BACKLOG)
        received = self._dispatcher_told if role == "dispatcher" else self._worker_told
        self._listeners[role] = listener

        def accept(_: int) -> None:
            WireSocket(self._loop, listener.accept()[0], received)  # the loop holds it

        self._loop.add(listener.fileno(), accept)

    def _beat(self) -> None:
        for connection in (self._dispatcher, self._worker):
            if connection is not None:
                connection.send(Heartbeat())

    def _dispatcher_told(self, connection: WireSocket, message: AnyMessage) -> None:
        if isinstance(message, Submit):
            connection.send(Placed(sid=message.sid, worker=self._incarnation, queue_ms=0))
            self.on_submit(message)
        elif isinstance(message, Hello):
            self._dispatcher = connection
            connection.send(Welcome(version=PROTOCOL_VERSION, id="dispatcher", incarnation=new_incarnation()))
            connection.send(
                WorkerUp(
                    id="worker-0",
                    incarnation=self._incarnation,
                    address=f"unix:{self._folder / 'worker'}",
                    model=self._model,
                    digest=self._digest,
                    max_tokens=100_000,
                )
            )

    def _worker_told(self, connection: WireSocket, message: AnyMessage) -> None:
        if isinstance(message, Cancel):
            connection.send(frame_of([], ends=[end_of(message.sid, message.reason)]))
            self.on_cancel(message.sid)
        elif isinstance(message, Hello):
            self._worker = connection
            connection.send(
                Welcome(
                    version=PROTOCOL_VERSION,
                    id="worker-0",
                    incarnation=self._incarnation,
                    digest=self._digest,
                )
            )


def _submit_ignore(_: Submit) -> None: ...


def _cancel_ignore(_: int) -> None: ...
