"""`python -m dispatch` over a real socket: greetings, a request's way through, peers that vanish."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuworker.wire.connection import Connection, connect
from gpuworker.wire.messages import (
    AnyMessage,
    Capacity,
    Ended,
    FleetState,
    Heartbeat,
    Placed,
    Refusal,
    RowKey,
    Run,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from tests.dispatch.peers import hello, report, submit


class Peer:
    """A real connection; `expect` waits for the next message of a kind."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[AnyMessage | None] = asyncio.Queue()
        self.connection: Connection | None = None

    async def dial(self, address: str, greeting: AnyMessage) -> "Peer":
        self.connection = await connect(
            address,
            lambda _, message: self.inbox.put_nowait(message),
            lambda *_: self.inbox.put_nowait(None),
        )
        self.connection.send(greeting)
        return self

    def send(self, message: AnyMessage) -> None:
        assert self.connection is not None
        self.connection.send(message)

    async def expect(self, kind: type | None, timeout_s: float = 5.0) -> AnyMessage | None:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await self.inbox.get()
                if message is None and kind is None:
                    return None
                assert message is not None, f"closed while waiting for {kind}"
                if kind is not None and isinstance(message, kind):
                    return message


@pytest.fixture
def address(tmp_path: Path, dispatcher: asyncio.subprocess.Process) -> str:
    """Of a dispatcher that listens."""
    return f"unix:{tmp_path}/d.sock"


@pytest.fixture
async def dispatcher(tmp_path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    listening = f"unix:{tmp_path}/d.sock"
    environment = {**os.environ, "SLUICE_WIRE_SECRET": "s", "SLUICE_DISPATCH": listening}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dispatch", env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(20):
        while b"listening" not in await process.stderr.readline():
            pass
    yield process
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        await process.stderr.read()
        assert await process.wait() == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [({"version": 99}, "bad_version"), ({"secret": "wrong"}, "bad_secret"), ({"role": "queen"}, "bad_role")],
)
async def test_a_peer_that_greets_wrongly_is_told_why(
    address: str, change: dict[str, object], code: str
) -> None:
    peer = await Peer().dial(address, replace(hello("gateway", "g", "g"), **change))
    refusal = await peer.expect(Refusal)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    await peer.expect(None)


async def test_anything_before_the_greeting_closes(address: str) -> None:
    peer = await Peer().dial(address, Heartbeat())
    await peer.expect(None)


async def test_a_request_travels_to_a_worker_and_the_fleet_shows_it(address: str) -> None:
    gateway = await Peer().dial(address, hello("gateway", "gateway-0", "g"))
    worker = await Peer().dial(address, hello("worker", "worker-0", "w"))
    await worker.expect(Welcome)
    worker.send(report(1))
    await gateway.expect(WorkerUp)
    gateway.send(submit(1))
    run = await worker.expect(Run)
    assert isinstance(run, Run)
    assert (run.gateway, run.submit.sid) == ("g", 1)
    await gateway.expect(Placed)

    controller = await Peer().dial(address, hello("controller", "controller", "c"))
    state = await controller.expect(FleetState)
    assert isinstance(state, FleetState)
    assert [w.id for w in state.workers] == ["worker-0"]
    assert [g.streams for g in state.gateways] == [1]

    worker.send(report(2, ended=[RowKey("g", 1)]))
    while [g.streams for g in state.gateways] != [0]:
        state = await controller.expect(FleetState)
        assert isinstance(state, FleetState)


async def test_a_worker_whose_connection_breaks_is_reported_at_once(address: str) -> None:
    gateway = await Peer().dial(address, hello("gateway", "gateway-0", "g"))
    worker = await Peer().dial(address, hello("worker", "worker-0", "w"))
    worker.send(report(1))
    await gateway.expect(WorkerUp)
    assert worker.connection is not None
    worker.connection.abort("killed")
    down = await gateway.expect(WorkerDown, timeout_s=1.0)
    assert isinstance(down, WorkerDown)
    assert down.incarnation == "w"


async def test_a_silent_worker_is_declared_dead_within_two_seconds(address: str) -> None:
    gateway = await Peer().dial(address, hello("gateway", "gateway-0", "g"))
    worker = await Peer().dial(address, hello("worker", "worker-0", "w"))
    worker.send(report(1))
    await gateway.expect(WorkerUp)
    await gateway.expect(WorkerDown, timeout_s=2.5)


async def test_a_dispatcher_that_was_stopped_does_not_blame_its_workers(
    address: str, dispatcher: asyncio.subprocess.Process
) -> None:
    gateway = await Peer().dial(address, hello("gateway", "gateway-0", "g"))
    worker = await Peer().dial(address, hello("worker", "worker-0", "w"))
    worker.send(report(1))
    await gateway.expect(WorkerUp)
    gateway.send(submit(1))
    await gateway.expect(Placed)
    dispatcher.send_signal(signal.SIGSTOP)
    for seq in range(10):
        await asyncio.sleep(0.2)
        worker.send(report(seq + 2, prefilled=[RowKey("g", 1)]))
    dispatcher.send_signal(signal.SIGCONT)
    gateway.send(submit(2))
    while (answer := await gateway.inbox.get()) != Placed(sid=2, worker="w", queue_ms=0):
        assert not isinstance(answer, WorkerDown | None)


async def test_a_peer_that_was_declared_dead_is_told_by_its_connection(address: str) -> None:
    worker = await Peer().dial(address, hello("worker", "worker-0", "w"))
    await worker.expect(Welcome)
    await worker.expect(None, timeout_s=3)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"capacity": Capacity(blocks=8, block_size=0, max_tokens=8, max_rows=8)}, "bad_role"),
        ({"incarnation": ""}, "bad_role"),
        ({"incarnation": "w2"}, "duplicate_id"),
    ],
)
async def test_a_worker_that_cannot_be_is_refused(address: str, change: dict[str, object], code: str) -> None:
    first = await Peer().dial(address, hello("worker", "worker-0", "w"))
    await first.expect(Welcome)
    second = await Peer().dial(address, replace(hello("worker", "worker-0", "w"), **change))
    refusal = await second.expect(Refusal)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code


async def test_a_worker_that_sends_what_only_gateways_send_is_closed(address: str) -> None:
    worker = await Peer().dial(address, hello("worker", "worker-0", "w"))
    await worker.expect(Welcome)
    worker.send(submit(1))
    await worker.expect(None)


async def test_a_gateway_that_never_returns_has_its_queue_dropped(address: str) -> None:
    gateway = await Peer().dial(address, hello("gateway", "gateway-0", "g"))
    await gateway.expect(Welcome)
    gateway.send(submit(1))
    assert gateway.connection is not None
    gateway.connection.close()
    controller = await Peer().dial(address, hello("controller", "controller", "c"))
    async with asyncio.timeout(6):
        while True:
            state = await controller.expect(FleetState)
            assert isinstance(state, FleetState)
            if not state.gateways and sum(q.depth for q in state.queues) == 0:
                break
    with contextlib.suppress(TimeoutError):
        assert await controller.expect(Ended, timeout_s=0.1) is None
