"""A fleet of production objects while versions are rolled out, replicas are replaced and messages go astray.

Everything follows from the seed and the operations. What happens is watched, not changed, but for messages
that go astray (`_tap`).
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from unittest.mock import patch

import msgspec

from gpuworker.wire.framing import FrameDecoder, encode
from gpuworker.wire.messages import AnyMessage, Hello, RowKey, Run
from modelsvc.contracts import ModelRoute
from policy.fair_queue import FairQueue
from policy.flow import Flow
from tests.dispatch.fence.dispatcher import WatchedDispatcher
from tests.dispatch.fence.gateway import GatewayNode
from tests.dispatch.fence.ledger import Ledger
from tests.dispatch.fence.network import Network, Process
from tests.dispatch.fence.virtual_loop import VirtualLoop
from tests.dispatch.fence.workers import WorkerNode

DISPATCHER = "unix:/sim/dispatcher"
DIGESTS = ("d1", "d2")
SLOTS = ("worker-0", "worker-1", "worker-2")
RUN, HELLO, WELCOME, CANCEL_ROW = b"\xa3Run", b"\xa5Hello", b"\xa7Welcome", b"\xa9CancelRow"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
REPLAYED_MOST = 6
HEAL_S = 14.0

Operations = list[tuple[float, str]]  # each a public method of the world, and the seconds after it


def decode(data: bytes) -> AnyMessage:
    (message,) = FrameDecoder().feed(data)
    return message


class World:
    """Between `boot` and `heal` anything may happen."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.random = Random(seed)
        self.loop = loop
        self.network = loop.network = Network(loop, Random(seed + 1))
        self.network.tap = self._tap
        self.ledger = Ledger()
        self.replay_rate = self.random.choice([0.0, 0.5, 1.0])
        self.credulous_rate = self.random.choice([0.0, 0.0, 0.7])
        self.workers: list[WorkerNode] = []
        self.revision = 1
        self.routes = [self._route("d1")]  # every state the registry was in
        self._recent: defaultdict[str, list[Run]] = defaultdict(list)  # by slot: what was sent there lately
        self._number = 0
        self._boots: defaultdict[str, int] = defaultdict(int)
        self.gateways: list[GatewayNode] = []
        self.gateway_processes: list[Process] = []

    def boot(self) -> None:
        self._dispatcher_start()
        for name in ("gateway-0", "gateway-1"):
            self._gateway_start(name)
        for slot in SLOTS:
            self._worker_start(slot)

    # -- operations ---------------------------------------------------------------------------------------

    def submit(self) -> None:
        gateway = self.random.choice(self.gateways)
        self._number += 1
        gateway.order(
            self._number,
            prompt=self.random.choice([4, 40, 200]),
            max_tokens=self.random.randint(1, 14),
            continues=self.random.random() < 0.5,
            klass=self.random.choice(["interactive", "interactive", "batch"]),
        )

    def burst(self) -> None:
        for _ in range(5):
            self.submit()

    def cancel(self) -> None:
        orders = [order for gateway in self.gateways for order in gateway.open]
        if orders:
            order = self.random.choice(sorted(orders, key=lambda order: order.request_id))
            order.was_cancelled = True
            order.cancel("cancelled")

    def flip(self) -> None:
        """A rollout, or back again: one row of the registry, and its revision."""
        self.revision += 1
        self.ledger.seen["flipped"] += 1
        other = DIGESTS[self.routes[-1].digest == DIGESTS[0]]
        self.routes.append(self._route(other))

    def look(self) -> None:
        """A gateway reads the registry, or what a server that lags believes of it."""
        gateway = self.random.choice(self.gateways)
        route = self.random.choice(self.routes[-3:])
        gateway.told([route])

    def replace(self) -> None:
        """The replica dies, and another with any weights is started at its address."""
        if worker := self._some_worker():
            self._kill(worker)
            delay_s = self.random.choice([0.0, 0.05, 0.8])
            self.loop.call_later(delay_s, self._worker_start, worker.name)

    def drain(self) -> None:
        if worker := self._some_worker():
            worker.drain()

    def hang(self) -> None:
        if worker := self._some_worker():
            self.ledger.disturbed.add(worker.incarnation)
            worker.backend.stall(self.random.choice([0.5, 1.5, 3.0]))

    def cut(self) -> None:
        """A worker from the dispatcher, from a gateway, or from everybody."""
        if worker := self._some_worker():
            self.ledger.disturbed.add(worker.incarnation)
            seconds = self.random.choice([0.3, 1.2, 2.5])
            others = [self.dispatcher_process, *self.gateway_processes]
            for other in self.random.choice([others, others[:1], others[1:2]]):
                self.network.cut(worker.process, other, seconds)

    def reset(self) -> None:
        """A worker's connections break, and are made again."""
        if worker := self._some_worker():
            self.ledger.disturbed.add(worker.incarnation)
            for other in (self.dispatcher_process, *self.gateway_processes):
                if self.random.random() < 0.6:
                    self.network.reset(worker.process, other)

    def gateway_reset(self) -> None:
        self.network.reset(self.random.choice(self.gateway_processes), self.dispatcher_process)

    def lie(self) -> None:
        """A worker's next greeting names weights it does not hold."""
        if worker := self._some_worker():
            self.ledger.disturbed.add(worker.incarnation)
            worker.lies = True
            self.network.reset(worker.process, self.dispatcher_process)

    def dispatcher_restart(self) -> None:
        self.dispatcher_process.kill(is_heard=self.random.random() < 0.7)
        self._dispatcher_start()

    # -- the end ------------------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Nothing fails any more, and there is a replica of everything."""
        self.replay_rate = self.credulous_rate = 0.0
        self.network.heal()
        for worker in self.workers:
            worker.lies = worker.is_credulous = False
        for number, digest in enumerate(DIGESTS):
            self._worker_start(f"spare-{number}", digest)
        until = self.loop.now + HEAL_S
        while self.loop.now < until and self._is_busy:
            await self.loop.pass_time(0.25)
        await self.loop.pass_time(0.6)

    # -- inside -------------------------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        computing = any(worker.is_alive and worker.backend.rows for worker in self.workers)
        return computing or any(gateway.open for gateway in self.gateways)

    def _route(self, digest: str) -> ModelRoute:
        return ModelRoute("demo", digest, 512, "us", EPOCH, self.revision)

    def _some_worker(self) -> WorkerNode | None:
        alive = [worker for worker in self.workers if worker.is_alive]
        return self.random.choice(alive) if alive else None

    def _kill(self, worker: WorkerNode) -> None:
        self.ledger.disturbed.add(worker.incarnation)
        worker.process.kill(is_heard=self.random.random() < 0.6)

    def _worker_start(self, slot: str, digest: str = "") -> None:
        if any(worker.name == slot and worker.is_alive for worker in self.workers):
            return
        self._boots[slot] += 1
        worker = WorkerNode(
            self.network,
            self.ledger,
            name=slot,
            incarnation=f"{slot}.{self._boots[slot]}",
            digest=digest or self.random.choice(DIGESTS),
            dispatcher=DISPATCHER,
            random=self.random,
            is_credulous=self.random.random() < self.credulous_rate,
        )
        self.workers.append(worker)

    def _dispatcher_start(self) -> None:
        self.dispatcher_process = Process(self.network, "dispatcher")
        seed = self.random.getrandbits(32)
        self.dispatcher = WatchedDispatcher(self.loop, seed)
        self.dispatcher_process.spawn(self.dispatcher.serve(DISPATCHER, asyncio.Event()))

    def _gateway_start(self, name: str) -> None:
        process = Process(self.network, name)
        node = process.context.run(lambda: GatewayNode(name, DISPATCHER, self.routes, self.ledger))
        self.gateways.append(node)
        self.gateway_processes.append(process)
        process.spawn(node.run())

    # -- messages -----------------------------------------------------------------------------------------

    def _tap(self, sender: Process, receiver: Process, data: bytes) -> list[bytes]:
        kind = data[4:16]  # the head of an array, and its first element
        if RUN in kind:
            return self._run_sent(receiver, data)
        if WELCOME in kind and sender is self.dispatcher_process:
            return [data, *self._astray(receiver)]
        if CANCEL_ROW in kind and b"moved" in data:  # a dispatcher that did not know has placed it elsewhere
            self.ledger.disturbed.add(receiver.name)
        if HELLO in kind and receiver is self.dispatcher_process:
            return [self._greeting(sender, data)]
        if HELLO in kind and (worker := self._worker_of(receiver)) and worker.is_credulous:
            return [_greeting_anybody(data)]
        return [data]

    def _run_sent(self, receiver: Process, data: bytes) -> list[bytes]:
        run, worker = decode(data), self._worker_of(receiver)
        assert isinstance(run, Run)
        assert worker is not None
        row = RowKey(run.gateway, run.submit.sid)
        self.ledger.sent[worker.incarnation].add(row)
        self.dispatcher.run_sent(worker.incarnation, row)
        recent = self._recent[worker.name]
        recent.append(run)
        del recent[:-REPLAYED_MOST]
        if run.submit.digest != worker.digest:
            self.ledger.seen["misplaced"] += 1
            return [encode(self._believed(worker, run))]
        return [data]

    def _astray(self, receiver: Process) -> list[bytes]:
        """Late and doubled: what was sent to this address before, on the next connection from there."""
        worker = self._worker_of(receiver)
        if worker is None or self.random.random() >= self.replay_rate:
            return []
        runs = list(self._recent[worker.name])
        self.random.shuffle(runs)
        self.ledger.seen["astray"] += len(runs)
        return [encode(self._believed(worker, run)) for run in runs]

    def _believed(self, worker: WorkerNode, run: Run) -> Run:
        if not worker.is_credulous:
            return run
        submit = msgspec.structs.replace(run.submit, digest=worker.digest)
        return msgspec.structs.replace(run, submit=submit, worker=worker.incarnation)

    def _greeting(self, sender: Process, data: bytes) -> bytes:
        worker = self._worker_of(sender)
        if worker is None or not worker.lies:
            return data
        worker.lies = worker.is_credulous
        hello = decode(data)
        assert isinstance(hello, Hello)
        return encode(msgspec.structs.replace(hello, digest=DIGESTS[hello.digest == DIGESTS[0]]))

    def _worker_of(self, process: Process) -> WorkerNode | None:
        return next((worker for worker in reversed(self.workers) if worker.process is process), None)


def _greeting_anybody(data: bytes) -> bytes:
    """For a worker that does not ask whom is meant."""
    hello = decode(data)
    assert isinstance(hello, Hello)
    return encode(msgspec.structs.replace(hello, to=""))


@contextmanager
def watched(world: World) -> Iterator[None]:
    """Time is the loop's, and what queues charge is known."""
    charge = FairQueue.charge

    def charged(queue: FairQueue, flow: Flow, cost_us: int, weight: float) -> None:
        world.dispatcher.charge(cost_us)
        charge(queue, flow, cost_us, weight)

    with patch.object(time, "monotonic", world.loop.time), patch.object(FairQueue, "charge", charged):
        yield


async def _live(loop: VirtualLoop, seed: int, operations: Operations) -> World:
    world = World(loop, seed)
    with watched(world):
        world.boot()
        await loop.pass_time(0.4)
        for pause_s, operation in operations:
            getattr(world, operation)()
            await loop.pass_time(pause_s)
        await world.heal()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return world


def lived(seed: int, operations: Operations) -> World:
    """A world in which these happened, healed and at rest."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_live(loop, seed, operations))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
