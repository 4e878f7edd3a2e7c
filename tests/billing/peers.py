"""Scripted dispatcher and worker that speak the real wire protocol over real sockets."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gpuworker.wire.connection import Connection, listen
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Collect,
    Collected,
    FleetState,
    GatewayView,
    Heartbeat,
    Hello,
    QueueView,
    Refusal,
    UsageCheckpoint,
    Welcome,
    WorkerView,
    new_incarnation,
)

SECRET = "wire-secret"


class Listener:
    """Greets controllers, then hands their messages to `received`."""

    def __init__(self, path: Path, name: str) -> None:
        self.address = f"unix:{path}"
        self.name = name
        self.incarnation = new_incarnation()
        self.silent = False
        self.heartbeats = 0
        self.greetings = 0
        self.connections: list[Connection] = []
        self.changed = asyncio.Condition()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        self._server = await listen(self.address, self._message, self._closed)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection.abort("stopped")
        await self._server.wait_closed()

    async def joined(self, count: int = 1) -> None:
        async with self.changed, asyncio.timeout(10):
            await self.changed.wait_for(lambda: len(self.connections) >= count)

    async def greeted(self, count: int) -> None:
        async with self.changed, asyncio.timeout(10):
            await self.changed.wait_for(lambda: self.greetings >= count)

    def received(self, connection: Connection, message: AnyMessage) -> None:
        raise AssertionError(f"{self.name} got {message}")

    def _message(self, connection: Connection, message: AnyMessage) -> None:
        if isinstance(message, Heartbeat):
            self.heartbeats += 1
            if not self.silent:
                connection.send(message)
        elif isinstance(message, Hello):
            if message.secret != SECRET or message.role != "controller":
                connection.send(Refusal(code="bad_secret", message="no"))
                connection.close()
                return
            connection.send(Welcome(version=PROTOCOL_VERSION, id=self.name, incarnation=self.incarnation))
            self.connections.append(connection)
            self.greetings += 1
        else:
            self.received(connection, message)
        asyncio.ensure_future(self._notify())  # noqa: RUF006

    def _closed(self, connection: Connection, cause: str) -> None:
        if connection in self.connections:
            self.connections.remove(connection)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


class ScriptedDispatcher(Listener):
    """Tells controllers what the test says the fleet is."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "dispatcher")
        self.seq = 0

    def tell(self, workers: Sequence[WorkerView], gateways: Sequence[str]) -> FleetState:
        self.seq += 1
        state = FleetState(
            seq=self.seq,
            at_ms=1_760_000_000_000 + 500 * self.seq,
            workers=list(workers),
            queues=[
                QueueView(model=model, klass="interactive", depth=depth, oldest_ms=0)
                for model, depth in (("m", 2), ("n", 3))
            ],
            gateways=[GatewayView(id="gateway-0", incarnation=name, streams=0) for name in gateways],
            submitted=0,
            refused=0,
            tokens_per_s=0.0,
        )
        for connection in self.connections:
            connection.send(state)
        return state


class ScriptedWorker(Listener):
    """A worker that is nothing but its journal; a position is the number of records before it, times ten."""

    def __init__(self, path: Path, name: str = "worker-0") -> None:
        super().__init__(path, name)
        self.journal_id = "journal-1"
        self.journal: list[UsageCheckpoint] = []
        self.asked: list[int] = []

    def received(self, connection: Connection, message: AnyMessage) -> None:
        assert isinstance(message, Collect)
        self.asked.append(message.after)
        first = min(message.after // 10, len(self.journal)) if message.journal == self.journal_id else 0
        last = min(first + message.limit, len(self.journal))
        records = self.journal[first:last]
        more = last < len(self.journal)
        connection.send(Collected(journal=self.journal_id, records=records, position=last * 10, more=more))

    async def collected(self, controllers: int = 1) -> None:
        """Everything in the journal is stored: a controller asked for what follows it."""
        end = len(self.journal) * 10
        seen = len(self.asked)
        async with self.changed, asyncio.timeout(10):
            await self.changed.wait_for(lambda: self.asked[seen:].count(end) >= controllers)

    def view(self) -> WorkerView:
        return WorkerView(
            id=self.name,
            incarnation=self.incarnation,
            model="m",
            digest="d",
            address=self.address,
            state="ready",
            running=4,
            waiting=0,
            pending_prefill_tokens=0,
            blocks=64,
            free_blocks=64,
            block_size=16,
            batch_rows=0,
            step=0,
            step_ms=0.0,
            tokens_per_s=0.0,
            preemptions=0,
            age_ms=0,
        )
