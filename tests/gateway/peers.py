"""A dispatcher and a worker in the test's event loop, over real Unix sockets, doing what the test says."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuworker.wire.connection import Connection, listen
from gpuworker.wire.messages import (
    HEARTBEAT_MS,
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    End,
    Ended,
    Frame,
    Heartbeat,
    Hello,
    Pause,
    Placed,
    Resume,
    Submit,
    Welcome,
    WorkerDown,
    WorkerUp,
    new_incarnation,
    pack_ids,
    unpack_ids,
)

SECRET = "wire-secret"
WAIT_S = 10.0


def end(
    sid: int, reason: str, *, prompt: int = 7, cached: int = 0, output: int = 0, message: str = ""
) -> End:
    return End(
        sid=sid,
        reason=reason,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        queue_ms=1,
        prefill_ms=2,
        decode_ms=3,
        preemptions=0,
        message=message,
    )


def frame(
    *rows: tuple[int, int, int, str], ends: tuple[End, ...] = (), ids: tuple[list[int], ...] = ()
) -> Frame:
    """`rows`: sid, start, count, text."""
    return Frame(
        step=1,
        sids=[row[0] for row in rows],
        starts=[row[1] for row in rows],
        counts=[row[2] for row in rows],
        texts=[row[3] for row in rows],
        ends=list(ends),
        ids=[pack_ids(list(row)) for row in ids],
    )


class Peer:
    """Listens, welcomes, remembers what it was told."""

    def __init__(self, name: str, address: str, digest: str = "") -> None:
        self.name = name
        self.address = address
        self.digest = digest
        self.incarnation = new_incarnation()
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.cancels: asyncio.Queue[Cancel] = asyncio.Queue()
        self.connection: Connection | None = None
        self._server: asyncio.AbstractServer | None = None
        self._heart: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._server = await listen(self.address, self._received, self._closed)
        self._heart = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            if self.connection is not None:
                self.connection.send(Heartbeat())

    async def stop(self) -> None:
        """As `kill -9` would: the listener and the connection are gone."""
        if self._heart is not None:
            self._heart.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self.connection is not None:
            self.connection.abort("stopped")
            await asyncio.sleep(0)

    def send(self, message: AnyMessage) -> None:
        assert self.connection is not None
        assert self.connection.send(message)

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        if isinstance(message, Hello):
            assert message.secret == SECRET
            self.connection = connection
            connection.send(
                Welcome(
                    version=PROTOCOL_VERSION, id=self.name, incarnation=self.incarnation, digest=self.digest
                )
            )
            if self.hello.done():
                self.hello = asyncio.get_running_loop().create_future()
            self.hello.set_result(message)
            self.greeted()
        elif isinstance(message, Cancel):
            self.cancels.put_nowait(message)
            self.cancelled(message)
        elif not isinstance(message, Heartbeat):
            self.told(message)

    def _closed(self, connection: Connection, cause: str) -> None:
        if self.connection is connection:
            self.connection = None
            if self.hello.done():
                self.hello = asyncio.get_running_loop().create_future()

    def greeted(self) -> None: ...

    def cancelled(self, cancel: Cancel) -> None: ...

    def told(self, message: AnyMessage) -> None: ...


class WorkerPeer(Peer):
    """Cancels are answered with an End when `counts` knows the row: what it has generated so far."""

    def __init__(self, name: str, address: str, digest: str) -> None:
        super().__init__(name, address, digest)
        self.counts: dict[int, tuple[int, int]] = {}  # sid -> prompt, output
        self.answers_cancels = True
        self.pauses: asyncio.Queue[Pause | Resume] = asyncio.Queue()

    def told(self, message: AnyMessage) -> None:
        if isinstance(message, Pause | Resume):
            self.pauses.put_nowait(message)

    def up(self, *, max_tokens: int = 100_000) -> WorkerUp:
        return WorkerUp(
            id=self.name,
            incarnation=self.incarnation,
            address=self.address,
            model="tiny",
            digest=self.digest,
            max_tokens=max_tokens,
        )

    def cancelled(self, cancel: Cancel) -> None:
        if self.answers_cancels and cancel.sid in self.counts:
            prompt, output = self.counts.pop(cancel.sid)
            self.send(frame(ends=(end(cancel.sid, cancel.reason, prompt=prompt, output=output),)))

    def emit(
        self, sid: int, start: int, count: int, text: str, *, prompt: int = 7, ids: list[int] | None = None
    ) -> None:
        self.counts[sid] = (prompt, start + count)
        self.send(frame((sid, start, count, text), ids=() if ids is None else (ids,)))

    def finish(self, sid: int, reason: str, *, prompt: int = 7, output: int, message: str = "") -> None:
        self.counts.pop(sid, None)
        self.send(frame(ends=(end(sid, reason, prompt=prompt, output=output, message=message),)))


class Dispatcher(Peer):
    """With a `script`, every submit is answered by it; without, the test takes it from `submits`."""

    def __init__(self, address: str) -> None:
        super().__init__("dispatcher", address)
        self.workers: list[WorkerPeer] = []
        self.submits: asyncio.Queue[Submit] = asyncio.Queue()
        self.script: Callable[[Submit], None] | None = None
        self.placed: set[int] = set()

    def greeted(self) -> None:
        for worker in self.workers:
            self.send(worker.up())

    async def add(self, worker: WorkerPeer) -> None:
        """Start it, announce it, and wait until the gateway is connected to it."""
        self.workers.append(worker)
        await worker.start()
        self.send(worker.up())
        await asyncio.wait_for(worker.hello, WAIT_S)

    async def lose(self, worker: WorkerPeer, *, announce: bool = True, crashed: bool = False) -> None:
        self.workers.remove(worker)
        await worker.stop()
        if announce:
            self.send(
                WorkerDown(id=worker.name, incarnation=worker.incarnation, cause="killed", crashed=crashed)
            )

    def told(self, message: AnyMessage) -> None:
        assert isinstance(message, Submit)
        if self.script is not None:
            self.script(message)
        else:
            self.submits.put_nowait(message)

    def cancelled(self, cancel: Cancel) -> None:
        if cancel.sid not in self.placed:
            self.send(Ended(sid=cancel.sid, code=cancel.reason, message="cancelled while it waited"))

    async def submitted(self) -> Submit:
        return await asyncio.wait_for(self.submits.get(), WAIT_S)

    def place(self, submit: Submit, worker: WorkerPeer) -> None:
        self.placed.add(submit.sid)
        worker.counts[submit.sid] = (0, 0)
        self.send(Placed(sid=submit.sid, worker=worker.incarnation, queue_ms=1))

    @contextmanager
    def scripted(self, script: Callable[[Submit], None]) -> Iterator[None]:
        self.script = script
        try:
            yield
        finally:
            self.script = None


def echo(dispatcher: Dispatcher) -> Callable[[Submit], None]:
    """A script: up to five words, then stop; fewer when max_tokens says so, then length."""

    def script(submit: Submit) -> None:
        worker = next(worker for worker in dispatcher.workers if worker.digest == submit.digest)
        dispatcher.place(submit, worker)
        prompt = len(unpack_ids(submit.prompt))
        words = ["Hello", " wörld", " 你好", " \u2028line", ' "end"\n'][: submit.max_tokens]
        for start, word in enumerate(words):
            worker.emit(submit.sid, start, 1, word, prompt=prompt)
        reason = "length" if submit.max_tokens <= len(words) else "stop"
        worker.finish(submit.sid, reason, prompt=prompt, output=len(words))

    return script


def socket_address(folder: Path, name: str) -> str:
    return f"unix:{folder / name}"
