"""Peers that come, return and go, and what becomes of the requests they had."""

import logging

from dispatch.announcing import gateway_inform, worker_inform
from dispatch.answers import Answers
from dispatch.fleet import Absent, Gateway, Peer, Worker
from dispatch.limits import Limits
from dispatch.members import Members
from dispatch.placing import request_of
from dispatch.prefixes import PrefixIndex
from dispatch.requests import Request, adopted_make
from dispatch.versions import Version, Versions
from gpuworker.wire.messages import CancelRow, GatewayGone, Hello, RowKey, WorkerDown

logger = logging.getLogger(__name__)


class Joining:
    def __init__(
        self,
        limits: Limits,
        prefix_secret: bytes,
        members: Members,
        versions: Versions,
        answers: Answers,
        now_ms: float,
    ) -> None:
        self._prefix_secret = prefix_secret
        self._members = members
        self._workers, self._gateways = members.workers, members.gateways
        self._versions = versions
        self._answers = answers
        self._trusted_until_ms = now_ms + limits.rejoin_grace_ms

    # -- gateways -----------------------------------------------------------------------------------------

    def gateway_joined(self, hello: Hello, peer: Peer, now_ms: float) -> None:
        gateway = self._gateways.get(hello.incarnation)
        if gateway is None:
            gateway = self._gateways[hello.incarnation] = Gateway(hello.id, hello.incarnation, peer, now_ms)
        gateway.id, gateway.peer, gateway.heard_ms, gateway.lost_ms = hello.id, peer, now_ms, None
        for worker in self._workers.values():
            if worker.takes_rows:
                peer.send(worker.up())
        gateway_inform(gateway, self._versions)

    def gateway_forget(self, gateway: Gateway) -> None:
        """Also its connection, if it has one: a gateway that wakes up must greet and submit again."""
        del self._gateways[gateway.incarnation]
        gateway.peer.abort("silent for too long")
        for request in gateway.rows.values():
            self._versions.unqueue(request)
        self._members.tell_workers(GatewayGone(gateway=gateway.incarnation))

    # -- workers ------------------------------------------------------------------------------------------

    def worker_joined(self, hello: Hello, peer: Peer, now_ms: float) -> None:
        """The caller has asked for `Members.worker_problem`."""
        assert hello.capacity is not None
        for other in [w for w in self._workers.values() if w.hello.id == hello.id]:
            self.worker_lost(other.hello.incarnation, "replaced by a newer connection")
        version = self._versions.add(hello.digest, hello.model, now_ms)
        prefixes = PrefixIndex(
            self._prefix_secret, hello.digest, hello.kv_dtype, hello.incarnation, version.queue.prefixes
        )
        worker = Worker(hello, hello.capacity, peer, now_ms, prefixes)
        self._workers[hello.incarnation] = worker
        rows = dict(zip(hello.running, hello.choices or [1] * len(hello.running), strict=True))
        adopted = [self._adopt(worker, row, choices, now_ms) for row, choices in rows.items()]
        if worker.takes_rows:
            version.holders[hello.incarnation] = worker
            version.replica_update(worker, now_ms)
            flows = dict(zip(hello.running, hello.flows, strict=False))  # an older worker does not say
            for request in adopted:
                if request is not None and (flow := flows.get(request.row)):
                    version.queue.adopt(adopted_make(request, flow, now_ms), hello.incarnation, now_ms)
            self._too_long_end(version)
            self._members.tell_gateways(worker.up())
        worker_inform(worker, version)

    def _adopt(self, worker: Worker, row: RowKey, choices: int, now_ms: float) -> Request | None:
        """Believe a row the worker runs if this dispatcher is new; else its gateway was told it is lost, and
        it is cancelled: None."""
        gateway = self._gateways.get(row.gateway)
        known = gateway.rows.get(row) if gateway else None
        if now_ms > self._trusted_until_ms or (known and known.worker):
            worker.peer.send(CancelRow(row=row, reason="moved"))
            return None
        if gateway is None:  # it has not come back yet: what it says about the row must find it
            gateway = Gateway("", row.gateway, Absent(), now_ms, lost_ms=self._trusted_until_ms)
            self._gateways[row.gateway] = gateway
        request = known or Request(row, None, now_ms, float("inf"))
        self._versions.unqueue(request)
        request.worker, request.prefilled = worker.hello.incarnation, True
        request.adopted_choices = max(1, choices)
        worker.add(request)
        gateway.rows[row] = request
        self._answers.placed(request)
        return request

    def worker_lost(self, incarnation: str, cause: str, *, has_closed: bool = False) -> None:
        """`has_closed`: its connection ended; without a word before, that is a crash."""
        worker = self._workers.pop(incarnation, None)
        if worker is None:
            return
        logger.warning("worker %s lost with %d rows: %s", worker.hello.id, len(worker.placed), cause)
        worker.peer.abort(cause)
        worker.prefixes.gone()
        for request in worker.lost():
            if gateway := self._gateways.get(request.row.gateway):
                gateway.release(request)
        version = self._versions.get(worker.hello.digest)
        if version is not None and version.holders.pop(incarnation, None) is not None:
            version.queue.replica_gone(incarnation)
            self._too_long_end(version)
        crashed = has_closed and not worker.draining
        down = WorkerDown(id=worker.hello.id, incarnation=incarnation, cause=cause, crashed=crashed)
        self._members.tell_gateways(down)

    def _too_long_end(self, version: Version) -> None:
        for waiting in version.queue.unservable():
            self._answers.too_long(request_of(waiting))
