"""The production dispatcher with its server on the simulated network, and rules its decisions must keep."""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from dispatch.server import DispatchServer
from gpuworker.wire.connection import Connection
from gpuworker.wire.messages import (
    HEARTBEAT_MS,
    AnyMessage,
    Ended,
    Placed,
    Refused,
    RowKey,
    Run,
    Submit,
    WorkerDown,
)
from policy.flow import Flow
from tests.dispatch.network import Clock, End, Node

if TYPE_CHECKING:
    from tests.dispatch.simulation import World

REFUSALS = ("queue_full", "deadline_unmeetable", "shed")


class DispatcherEnd(End):
    """What the dispatcher sends is shown to its node first."""

    def send(self, message: AnyMessage) -> bool:
        if self.is_open:
            cast(DispatcherNode, self.owner).sends(self, message)
        return super().send(message)


@dataclass(frozen=True, slots=True)
class Known:
    """A request as it was submitted. `number` is its place among those that came at the same time."""

    digest: str
    arrived_ms: float
    deadline_ms: float
    number: int


class DispatcherNode(Node):
    """The production server on simulated connections, and an own account of who may come next."""

    def __init__(self, clock: Clock, world: "World") -> None:
        super().__init__(clock)
        self._world = world
        self.server = DispatchServer("s", world.limits, lambda: clock.now, seed=clock.random.getrandbits(32))
        self.core = self.server._dispatcher
        self.ends: set[End] = set()
        self._waiting: dict[RowKey, Known] = {}
        self._running: dict[RowKey, Known] = {}
        self._numbers = itertools.count()
        self._refusals = 0
        self.every(lambda: HEARTBEAT_MS, self.server.beat)

    def opened(self, end: End) -> None:
        self.ends.add(end)
        self.server.peer_opened(cast(Connection, end))

    def said(self, end: End, message: AnyMessage) -> None:
        peer = self.server._peers.get(cast(Connection, end))
        if peer is not None and isinstance(message, Submit):
            self._submitted(end, RowKey(peer.incarnation, message.sid), message)
            return
        if isinstance(message, Refused) and message.row in self._running and message.code != "unservable":
            self._waiting[message.row] = self._running.pop(message.row)
        self.server.peer_said(cast(Connection, end), message)
        incarnations = [peer.incarnation for peer in self.server._peers.values()]
        assert len(set(incarnations)) == len(incarnations), "two connections of one process"

    def _submitted(self, end: End, row: RowKey, message: Submit) -> None:
        now = self.clock.now
        if row not in self.core._members.gateways[row.gateway].rows:
            deadline_ms = now + message.deadline_ms
            self._waiting[row] = Known(
                message.digest, now - message.waited_ms, deadline_ms, next(self._numbers)
            )
            self._running.pop(row, None)
        before, refusals = self._state(message.digest), self._refusals
        self.server.peer_said(cast(Connection, end), message)
        if self._refusals > refusals:
            assert before == self._state(message.digest), "a refusal changed something"

    def _state(self, digest: str) -> object:
        version = self.core._versions.get(digest)
        return (version.queue.flows(), version.queue.over_share()) if version else ([], frozenset())

    def closed(self, end: End) -> None:
        self.ends.discard(end)
        self.server.peer_closed(cast(Connection, end), "closed by peer")

    def sends(self, end: End, message: AnyMessage) -> None:
        match message:
            case Run(gateway=gateway, submit=request):
                self._judge(RowKey(gateway, request.sid), request)
            case Placed(sid=sid) | Ended(sid=sid):
                peer = self.server._peers[cast(Connection, end)]
                self._waiting.pop(RowKey(peer.incarnation, sid), None)
                self._refusals += isinstance(message, Ended) and message.code in REFUSALS
            case WorkerDown(incarnation=incarnation, cause="silent for too long"):
                was_frozen = self._world.workers[incarnation].frozen_ms > 1_000
                assert was_frozen or "cut" in self._world.faults, "it was not silent"

    def _judge(self, row: RowKey, submit: Submit) -> None:
        """It waited, can still be in time, and of its flow nobody is more urgent."""
        known = self._waiting[row]
        assert self.clock.now < known.deadline_ms, f"{row} begins after its deadline"
        flow = Flow(submit.tenant, submit.klass)
        urgency = (known.deadline_ms, known.arrived_ms, known.number)
        for other, waits in self._waiting.items():
            if waits.digest == known.digest and self._flow(other) == flow:
                least = (waits.deadline_ms, waits.arrived_ms, waits.number)
                assert urgency <= least, f"{row} overtook {other}"
        self._running[row] = self._waiting.pop(row)

    def _flow(self, row: RowKey) -> Flow | None:
        """As what it waits; None: it does not, its end may have been said to a connection that was gone."""
        gateway = self.core._members.gateways.get(row.gateway)
        request = gateway.rows.get(row) if gateway else None
        return request.waiting.flow if request is not None and request.waiting is not None else None
