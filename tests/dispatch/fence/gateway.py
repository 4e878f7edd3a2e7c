"""A gateway process of the simulation: the production upstream, a view of the routes that lags, and clients
that check every part they are given."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from gateway.answer_parts import Finished, PromptRow, Row, Sink
from gateway.errors import ApiError
from gateway.generation import Names
from gateway.jobs.job import Job
from gateway.jobs.watchdog import Watchdog
from gateway.limits import Limits
from gateway.metrics import Metrics
from gateway.settings import Settings
from gateway.upstream.dispatcher import Upstream
from gateway.upstream.stream import Stream
from gpuworker.wire.messages import Sampling, Submit, pack_ids
from modelsvc.contracts import ModelRoute
from modelsvc.routes import routes_merge
from tests.dispatch.fence.backend import token
from tests.dispatch.fence.ledger import Ledger

METRICS = Metrics()
LIMITS = Limits(settle_s=2.0, worker_unreachable_s=2.0, deadline_grace_s=2.0)
DEADLINE_S = 40.0
RECORDED_S = 0.02  # after the end: usage is on disk, and the stream is forgotten
NAMES = Names()


def settings(name: str, dispatcher: str) -> Settings:
    nowhere = Path("/nowhere")
    return Settings(name, dispatcher, "s", b"", (), "", "", weights=nowhere, spool=nowhere)


@dataclass(eq=False)
class Order:
    """One client's request, with what was admitted and what it was given. Stands for the job and its sink.

    `digest` and `revision` are of the route at admission. `losses` are the workers it was lost with.
    """

    request_id: str
    digest: str
    revision: int
    max_tokens: int
    deadline_at: float
    node: "GatewayNode"
    ledger: Ledger
    names: Names = NAMES
    rows: int = 0
    losses: list[str] = field(default_factory=list)
    failure: ApiError | None = None
    has_ended: bool = False
    was_cancelled: bool = False
    streams: list[Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sink: Sink = self

    @property
    def reservation(self) -> "Order":
        return self

    def produced(self, tokens: int) -> None: ...

    def row(self, row: Row) -> None:
        self.ledger.check(not self.has_ended, f"{self.request_id} gets more after its end")
        is_right = row.text == token(self.digest, self.request_id, self.rows)
        what = f"{self.request_id} of {self.digest} is given {row.text!r} as its token {self.rows}"
        self.ledger.check(is_right, what)
        self.rows += 1

    def prompt_row(self, row: PromptRow) -> None: ...

    def finished(self, finished: Finished) -> None: ...

    def failed(self, error: ApiError) -> None: ...

    def continued(self, number: int) -> None:
        self.ledger.seen["continued"] += 1

    def fail(self, error: ApiError) -> None:
        if self.failure is None and not self.has_ended:
            self.failure = error
            if error.code == "replica_lost":
                self.ledger.lost(self.streams[0].worker, self.request_id)
            self.cancel("error")

    def fail_late(self, message: str) -> None:
        self.fail(ApiError("deadline_exceeded", message))

    def cancel(self, reason: str) -> None:
        for stream in self.streams:
            self.node.upstream.cancel(stream, reason)

    def stream_settled(self) -> None:
        self.ledger.check(not self.has_ended, f"{self.request_id} ends twice")
        self.has_ended = True
        self.ledger.seen[self.failure.code if self.failure else "completed"] += 1
        self.node.open.discard(self)
        asyncio.get_running_loop().call_later(RECORDED_S, self.node.upstream.forget, self.streams[0])


class WatchedStream(Stream):
    """Says which worker it was lost with before it goes on elsewhere."""

    __slots__ = ()

    def move(self, sid: int, now: float, lost_on: str) -> None:
        order = cast(Order, self.owner)
        order.losses.append(self.worker)
        order.ledger.lost(self.worker, order.request_id)
        super().move(sid, now, lost_on)


class GatewayNode:
    """`view` is its copy of the routes; nothing it is told makes it older."""

    def __init__(self, name: str, dispatcher: str, routes: Iterable[ModelRoute], ledger: Ledger) -> None:
        self._ledger = ledger
        self.upstream = Upstream(settings(name, dispatcher), METRICS)
        self.orders: list[Order] = []
        self.view = routes_merge({}, routes)
        self.open: set[Order] = set()
        self.watchdog = Watchdog(self.upstream, cast(set[Job], self.open), set(), LIMITS, METRICS)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.upstream.run())
            tasks.create_task(self.watchdog.run())

    def told(self, routes: Iterable[ModelRoute]) -> None:
        """What a server answered that may lag."""
        before, self.view = self.view, routes_merge(self.view, routes)
        for slug, route in before.items():
            self._ledger.check(self.view[slug].revision >= route.revision, "a view went back")

    def order(
        self, number: int, *, prompt: int, max_tokens: int, continues: bool, klass: str
    ) -> Order | None:
        """None: the gateway has no dispatcher, and says so."""
        now, route = asyncio.get_running_loop().time(), self.view["demo"]
        submit = Submit(
            sid=self.upstream.sid_next(),
            request_id=f"r{number}",
            attempt=1,
            tenant=f"t{number % 3}",
            model="demo",
            digest=route.digest,
            klass=klass,
            prompt=pack_ids([7] * prompt),
            max_tokens=max_tokens,
            sampling=Sampling(),
            deadline_ms=int(DEADLINE_S * 1000),
            wants_ids=continues,
            route_revision=route.revision,
        )
        order = Order(
            request_id=submit.request_id,
            digest=route.digest,
            revision=route.revision,
            max_tokens=max_tokens,
            deadline_at=now + DEADLINE_S,
            node=self,
            ledger=self._ledger,
        )
        stream = WatchedStream(submit=submit, prompt=0, owner=order, deadline_at=now + DEADLINE_S, now=now)
        order.streams.append(stream)
        try:
            self.upstream.submit(stream)
        except ApiError as error:
            self._ledger.check(error.code == "overloaded", f"refused: {error.code}")
            return None
        self.orders.append(order)
        self.open.add(order)
        return order
