"""Several worker processes behind a real dispatcher, and a gateway and a controller of the test's own."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gpuworker.wire.connection import Connection, connect
from gpuworker.wire.messages import (
    AnyMessage,
    End,
    Ended,
    FleetState,
    Heartbeat,
    Placed,
    WorkerUp,
    WorkerView,
    new_incarnation,
)
from tests.worker.peers import GatewayEnd
from tests.worker.support import ROOT, SECRET, TIMEOUT_S, Waiter, WorkerProcess, hello_make, submit_make


@dataclass
class Fleet(Waiter):
    """Worker processes by name; its gateway is connected to each worker that takes rows."""

    folder: Path
    weights: Path
    digest: str
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    gateways: dict[str, GatewayEnd] = field(default_factory=dict)  # by the worker's incarnation
    placed: dict[int, str] = field(default_factory=dict)  # sid -> the worker's incarnation
    ended: dict[int, Ended] = field(default_factory=dict)
    state: FleetState | None = None

    def __post_init__(self) -> None:
        Waiter.__init__(self)
        self.incarnation = new_incarnation()
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: list[Connection] = []

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/dispatch.sock"

    async def start(self) -> Self:
        environment = {**os.environ, "SLUICE_WIRE_SECRET": SECRET, "SLUICE_DISPATCH": self.address}
        self._dispatcher = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dispatch"), cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
        )
        assert self._dispatcher.stderr is not None
        async with asyncio.timeout(TIMEOUT_S):
            while b"listening" not in await self._dispatcher.stderr.readline():
                pass
        for role, incarnation in (("gateway", self.incarnation), ("controller", new_incarnation())):
            connection = await connect(self.address, self._received, lambda *_: None)
            connection.send(hello_make(role, incarnation))
            self._connections.append(connection)
        self._tasks.append(asyncio.create_task(self._beat()))
        return self

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for gateway in self.gateways.values():
            await gateway.close()
        for connection in self._connections:
            connection.abort("test over")
        for worker in self.workers.values():
            await worker.kill()
        self._dispatcher.send_signal(signal.SIGTERM)
        await self._dispatcher.communicate()

    async def worker_start(self, name: str, role: str, *options: str) -> WorkerProcess:
        """Returns when the dispatcher would place rows on it."""
        worker = self.workers[name] = WorkerProcess(self.folder, self.weights, name)
        await worker.start("--role", role, *options)
        await self.until(lambda: (view := self.view(name)) is not None and view.state == "ready")
        return worker

    def view(self, name: str) -> WorkerView | None:
        """The worker as the dispatcher last saw it."""
        views = self.state.workers if self.state is not None else []
        return next((view for view in views if view.id == f"worker-{name}"), None)

    async def submit(self, sid: int, text: str, **fields: object) -> None:
        await self.until(lambda: self.gateways)
        self.send(submit_make(sid, text, **({"digest": self.digest} | fields)))

    def send(self, message: AnyMessage) -> None:
        assert self._connections[0].send(message)

    async def run(self, sid: int, text: str, **fields: object) -> tuple[str, End]:
        """A request from its submission to its end."""
        await self.submit(sid, text, **fields)
        return await self.result(sid)

    async def result(self, sid: int) -> tuple[str, End]:
        gateway = await self.gateway_of(sid)
        await gateway.until_ended(sid)
        return gateway.text(sid), gateway.ends[sid]

    async def gateway_of(self, sid: int) -> GatewayEnd:
        """The connection over which its tokens come."""
        await self.until(lambda: sid in self.ended or self.placed.get(sid) in self.gateways)
        assert sid not in self.ended, self.ended[sid]
        return self.gateways[self.placed[sid]]

    async def until_idle(self, *names: str) -> None:
        """All blocks of these workers are free, and no row is left."""

        def is_idle(view: WorkerView | None) -> bool:
            return view is not None and (view.running, view.waiting, view.blocks - view.free_blocks) == (
                0,
                0,
                0,
            )

        await self.fresh()
        await self.until(lambda: all(is_idle(self.view(name)) for name in names or self.workers))

    async def steps_of(self, name: str) -> int:
        """Everything before this call is counted."""
        await self.fresh()
        view = self.view(name)
        assert view is not None
        return view.step

    async def fresh(self) -> None:
        """A state of the fleet that comes after reports that come after this call."""
        for _ in range(2):
            before = self.state
            await self.until(lambda before=before: self.state is not before)  # type: ignore[misc]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.send(Heartbeat())

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        match message:
            case FleetState():
                self.state = message
            case WorkerUp() if message.incarnation not in self.gateways:
                self._tasks.append(asyncio.create_task(self._attach(message)))
            case Placed():
                self.placed[message.sid] = message.worker
            case Ended():
                self.ended[message.sid] = message
        self.notify()

    async def _attach(self, up: WorkerUp) -> None:
        self.gateways[up.incarnation] = await GatewayEnd(up.address, self.incarnation).connect()
        self.notify()
