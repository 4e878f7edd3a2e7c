"""A fleet around the production dispatcher and its server, and the rules that must hold at every moment."""

import itertools
from collections import Counter
from functools import partial
from typing import TypeVar

from dispatch.limits import Limits
from dispatch.versions import FORGET_MS
from gpuworker.wire.messages import Run
from policy.flow import BATCH
from policy.placement import PREFILL_WINDOW_TOKENS
from policy.queue_settings import QueueSettings
from tests.dispatch.client_node import Client
from tests.dispatch.dispatcher_node import DispatcherEnd, DispatcherNode
from tests.dispatch.gateway_node import Gateway
from tests.dispatch.network import Clock, End
from tests.dispatch.peers import submit
from tests.dispatch.worker_node import BLOCKS, MAX_ROWS, Worker

DIGESTS = ("d1", "d2")
TENANTS = {"acme": 1.0, "globex": 1.0, "initech": 3.0}  # and what each weighs
LIMITS = Limits(queue=QueueSettings(queue_least=4, queue_most=12, queue_unknown=12))

Some = TypeVar("Some", Worker, Gateway)


class World:
    """Operations of a test are its public methods; `faults` names those that happened."""

    def __init__(self, seed: int, limits: Limits = LIMITS) -> None:
        self.clock = Clock(seed)
        self.limits = limits
        self.random = self.clock.random
        self.faults: set[str] = set()
        self.refusal_rate = self.random.choice([0.0, 0.0, 0.1, 0.4])
        self.old_worker_rate = 0.2  # of workers that say nothing of machine time
        self.workers: dict[str, Worker] = {}
        self.gateways: dict[str, Gateway] = {}
        self.joins: Counter[str] = Counter()
        self._sids = itertools.count(1)
        self._incarnations = itertools.count(1)
        self.dispatcher = DispatcherNode(self.clock, self)
        for number in range(2):
            self._gateway_start(f"gateway-{number}")
        self.clock.run(100)

    # -- what nodes ask -----------------------------------------------------------------------------------

    def dial(self, node: Client) -> End | None:
        if not self.dispatcher.alive:
            return None
        here, there = End(self.clock, node), DispatcherEnd(self.clock, self.dispatcher)
        here.other, there.other = there, here
        self.dispatcher.post(lambda: self.dispatcher.opened(there))
        self.joins[node.incarnation] += 1
        return here

    def worker(self, incarnation: str) -> Worker | None:
        worker = self.workers.get(incarnation)
        return worker if worker is not None and worker.alive else None

    def gateway(self, incarnation: str) -> Gateway | None:
        gateway = self.gateways.get(incarnation)
        return gateway if gateway is not None and gateway.alive else None

    def accepted(self, worker: Worker, run: Run) -> None:
        assert run.submit.digest == worker.digest, "placed on other weights"
        assert worker.serves != "prefill", "a row on a worker that only computes prompts"
        if run.prefill_from:
            digests = {w.digest for w in self.workers.values() if run.prefill_from == f"unix:/{w.name}"}
            assert worker.digest in digests, "a prompt computed with other weights"
        *others, own = worker.rows.values()
        if self.joins[worker.incarnation] == 1:  # how far its prompts are when it comes back, nobody knows
            before = sum(row.pending for row in others if not row.is_remote and row.flow == own.flow)
            assert before < PREFILL_WINDOW_TOKENS, "order was decided too early"
        if self.joins[worker.incarnation] == 1 and others:
            assert worker.held_rows <= MAX_ROWS, "more rows than the worker has"
        if self.joins[worker.incarnation] == 1 and len(worker.rows) > 1:
            # Rows of flows that yield give way; to batch nobody's do, and a flow's own never.
            kept = [row for row in worker.rows.values() if own.flow[1] == BATCH or row.flow == own.flow]
            assert sum(row.blocks for row in kept) <= BLOCKS, "more KV than the worker has"

    # -- operations ---------------------------------------------------------------------------------------

    def submit(self) -> None:
        gateway = self.random.choice(self._alive(self.gateways))
        if not gateway.is_frozen:
            longest = self.random.choice([400, 800])
            prompt, digest = self.random.randint(1, longest), self.random.choice(DIGESTS)
            choices = self.random.choice([1, 1, 1, 2, MAX_ROWS + 2])
            klass = self.random.choice(["interactive", "batch"])
            deadline_ms = self.random.choice([500, 10_000, 30_000])
            tenant = self.random.choice(list(TENANTS))
            gateway.request(
                submit(
                    next(self._sids),
                    prompt=prompt,
                    digest=digest,
                    tenant=tenant,
                    weight=TENANTS[tenant],
                    klass=klass,
                    deadline_ms=deadline_ms,
                    n=choices,
                )
            )

    def burst(self) -> None:
        for _ in range(8):
            self.submit()

    def cancel(self) -> None:
        gateway = self.random.choice(self._alive(self.gateways))
        if gateway.streams and not gateway.is_frozen:
            gateway.cancel(self.random.choice(list(gateway.streams)), "cancelled")

    def time(self) -> None:
        self.clock.run(self.random.choice([5, 50, 400, 1_500]))

    def worker_start(self, digest: str = "", serves: str = "") -> None:
        serves = serves or self.random.choice(["both", "decode", "prefill"])
        names = {f"worker-{n}" for n in range(4)} - {w.name for w in self._alive(self.workers)}
        if names:
            incarnation, digest = f"w{next(self._incarnations)}", digest or self.random.choice(DIGESTS)
            self.workers[incarnation] = Worker(
                self.clock,
                self,
                min(names),
                incarnation,
                digest=digest,
                serves=serves,
                refusal_rate=self.refusal_rate,
                tells_work=self.random.random() >= self.old_worker_rate,
            )

    def worker_kill(self) -> None:
        if alive := self._alive(self.workers):
            self._kill(worker := self.random.choice(alive))
            for gateway in self._alive(self.gateways):
                gateway.post(partial(gateway.worker_gone, worker.incarnation, tell=True))

    def worker_freeze(self) -> None:
        if alive := self._alive(self.workers):
            self.random.choice(alive).freeze(self.random.choice([300, 1_300, 4_000]))

    def worker_drain(self) -> None:
        if alive := self._alive(self.workers):
            self.random.choice(alive).is_draining = True

    def gateway_restart(self) -> None:
        self.faults.add("gateway")
        self._kill(gateway := self.random.choice(self._alive(self.gateways)))
        self._gateway_start(gateway.name)
        for worker in self._alive(self.workers):
            lost = partial(worker.gateway_gone, gateway.incarnation)
            self.clock.after(2_000, partial(worker.post, lost))

    def gateway_freeze(self) -> None:
        self.faults.add("gateway")
        self.random.choice(self._alive(self.gateways)).freeze(self.random.choice([300, 3_000, 9_000]))

    def cut(self) -> None:
        """A connection to the dispatcher breaks; both processes live on."""
        self.faults.add("cut")
        if joined := [c for c in (*self._alive(self.gateways), *self._alive(self.workers)) if c.link]:
            end = self.random.choice(joined).link
            assert end is not None
            end.abort("cut")

    def dispatcher_freeze(self) -> None:
        """Not twice in a row: past five seconds its peers give it up, as `cut` and restarts show."""
        if self.clock.now - self.dispatcher.thaws_at > 2_000:
            self.dispatcher.freeze(self.random.choice([300, 1_700, 4_000]))

    def dispatcher_restart(self) -> None:
        self.faults.add("dispatcher")
        self.dispatcher.alive = False
        for end in list(self.dispatcher.ends):
            end.abort("killed")
        self.clock.run(self.random.choice([10, 300, 2_500]))
        self.dispatcher = DispatcherNode(self.clock, self)

    # -- the end ------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """A worker for each model, nobody refuses, and time enough for everything."""
        self.refusal_rate = 0.0
        self.clock.run(5_000)
        for worker in self._alive(self.workers):
            self._kill(worker)
            for gateway in self._alive(self.gateways):
                gateway.worker_gone(worker.incarnation)
        for digest in DIGESTS:
            self.worker_start(digest, "both")
        for _ in range(60):
            self.clock.run(1_000)
            if all(stream.settled for g in self._alive(self.gateways) for stream in g.streams.values()):
                break
        self.clock.run(2_000)

    def depart(self) -> None:
        """Everybody leaves, for good."""
        for node in (*self._alive(self.gateways), *self._alive(self.workers)):
            self._kill(node)
        self.clock.run(12_000)
        self.clock.now += FORGET_MS
        self.clock.run(1_000)

    def _alive(self, nodes: dict[str, Some]) -> list[Some]:
        return [node for node in nodes.values() if node.alive]

    def _gateway_start(self, name: str) -> None:
        incarnation = f"g{next(self._incarnations)}"
        self.gateways[incarnation] = Gateway(self.clock, self, name, incarnation)

    def _kill(self, node: Client) -> None:
        node.alive = False
        if node.link is not None:
            node.link.close()
