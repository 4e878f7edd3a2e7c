"""The dispatcher's decisions, without sockets or clocks: every call says what time it is.

Owns the order of waiting requests and where each one was placed. Requests live in exactly one place: a queue,
or the `placed` table of one worker; `Gateway.rows` indexes both.
"""

import logging
from collections import defaultdict
from dataclasses import dataclass

from dispatch.fleet import Gateway, Send, Worker
from dispatch.queues import CLASSES, INTERACTIVE, Queue, Request
from gpuworker.wire.messages import (
    Cancel,
    CancelRow,
    Ended,
    FleetState,
    GatewayGone,
    Hello,
    Placed,
    QueueView,
    Refused,
    Report,
    RowKey,
    Run,
    Submit,
    WorkerDown,
)
from policy.placement import is_servable, placement_choose

logger = logging.getLogger(__name__)

# Refusals that another moment or another replica may cure; anything else ends the request.
_RETRYABLE_REFUSALS = ("capacity", "draining")


@dataclass(frozen=True)
class Limits:
    queue_depth: int = 2_800  # per model version and class: 280 requests/s drained, 10 s deadline
    no_replica_grace_ms: float = 30_000  # how long requests wait for a model without any replica
    gateway_silence_ms: float = 5_000  # a gateway that says nothing this long counts as disconnected
    gateway_grace_ms: float = 2_000  # how long a gateway may be disconnected before its requests end
    rejoin_grace_ms: float = 5_000  # after start: rows that workers already run are believed


class Dispatcher:
    """One dispatcher. Methods mirror the messages; `tick` must be called a few times a second."""

    def __init__(self, limits: Limits, now_ms: float) -> None:
        self._limits = limits
        self._started_ms = now_ms
        self._workers: dict[str, Worker] = {}
        self._gateways: dict[str, Gateway] = {}
        self._queues: dict[tuple[str, str], Queue] = defaultdict(Queue)  # (digest, class)
        self._models: dict[str, str] = {}  # digest -> slug, for people
        self._without_replica_ms: dict[str, float] = {}  # digest -> since when
        self._submitted = 0
        self._refused = 0
        self._fleet_seq = 0

    # -- gateways -----------------------------------------------------------------------------------------

    def gateway_joined(self, hello: Hello, send: Send, now_ms: float) -> None:
        gateway = self._gateways.get(hello.incarnation)
        if gateway is None:
            gateway = Gateway(hello.id, hello.incarnation, send, now_ms)
            self._gateways[hello.incarnation] = gateway
        gateway.send, gateway.heard_ms, gateway.lost_ms = send, now_ms, None
        for worker in self._workers.values():
            send(worker.up())

    def gateway_heard(self, incarnation: str, now_ms: float) -> None:
        if gateway := self._gateways.get(incarnation):
            gateway.heard_ms, gateway.lost_ms = now_ms, None

    def gateway_lost(self, incarnation: str, now_ms: float) -> None:
        """Its connection is gone; `tick` ends its requests unless it comes back in time."""
        if gateway := self._gateways.get(incarnation):
            gateway.lost_ms = now_ms

    def submit(self, incarnation: str, submit: Submit, now_ms: float) -> None:
        gateway = self._gateways[incarnation]
        row = RowKey(incarnation, submit.sid)
        if known := gateway.rows.get(row):
            if known.worker:  # submitted again because our answer was lost with a connection
                gateway.send(Placed(sid=row.sid, worker=known.worker, queue_ms=0))
            return
        self._submitted += 1
        klass = submit.klass if submit.klass in CLASSES else INTERACTIVE
        queue = self._queues[submit.digest, klass]
        self._models[submit.digest] = submit.model
        request = Request(row, submit, klass, now_ms - submit.waited_ms, now_ms + submit.deadline_ms)
        gateway.rows[row] = request
        if len(queue) >= self._limits.queue_depth:
            retry_ms = min(60_000, max(1_000, queue.oldest_ms(now_ms)))
            self._end(request, "queue_full", "too many requests are waiting for this model", retry_ms)
            return
        queue.push(request)
        self._place(submit.digest, now_ms)

    def cancel(self, incarnation: str, cancel: Cancel, now_ms: float) -> None:
        gateway = self._gateways[incarnation]
        request = gateway.rows.get(RowKey(incarnation, cancel.sid))
        if request is None:
            return
        if worker := self._workers.get(request.worker):
            worker.send(CancelRow(row=request.row, reason=cancel.reason))
        else:
            self._dequeue(request)
            self._end(request, cancel.reason, "cancelled while it waited")

    # -- workers ------------------------------------------------------------------------------------------

    def worker_joined(self, hello: Hello, send: Send, now_ms: float) -> None:
        """Raises ValueError when the greeting lacks what a worker must say."""
        if hello.capacity is None or not hello.digest or not hello.address:
            raise ValueError("a worker's Hello needs digest, address and capacity")
        for other in [w for w in self._workers.values() if w.hello.id == hello.id]:
            self.worker_lost(other.hello.incarnation, "replaced by a new process", now_ms)
        worker = Worker(hello, hello.capacity, send, now_ms)
        self._workers[hello.incarnation] = worker
        self._models[hello.digest] = hello.model
        for row in hello.running:
            self._adopt(worker, RowKey(*row), now_ms)
        for gateway in self._gateways.values():
            gateway.send(worker.up())

    def _adopt(self, worker: Worker, row: RowKey, now_ms: float) -> None:
        """Believe a row the worker runs if this dispatcher is new; else its gateway was told it is lost."""
        if now_ms - self._started_ms > self._limits.rejoin_grace_ms:
            worker.send(CancelRow(row=row, reason="error"))
            return
        request = Request(row, None, INTERACTIVE, now_ms, float("inf"), worker.hello.incarnation, True)
        worker.add(request)
        if gateway := self._gateways.get(row.gateway):
            if queued := gateway.rows.get(row):
                self._dequeue(queued)
            gateway.rows[row] = request
            gateway.send(Placed(sid=row.sid, worker=request.worker, queue_ms=0))

    def worker_lost(self, incarnation: str, cause: str, now_ms: float) -> None:
        worker = self._workers.pop(incarnation, None)
        if worker is None:
            return
        logger.warning("worker %s lost with %d rows: %s", worker.hello.id, len(worker.placed), cause)
        for row in worker.placed:
            if gateway := self._gateways.get(row.gateway):
                gateway.rows.pop(row, None)
        for gateway in self._gateways.values():
            gateway.send(WorkerDown(id=worker.hello.id, incarnation=incarnation, cause=cause))

    def worker_heard(self, incarnation: str, now_ms: float) -> None:
        if worker := self._workers.get(incarnation):
            worker.heard_ms = now_ms

    def report(self, incarnation: str, report: Report, now_ms: float) -> None:
        worker = self._workers[incarnation]
        worker.reported(report, now_ms)
        for row in report.ended:
            self._unplace(worker, row)
        self._place(worker.hello.digest, now_ms)

    def refused(self, incarnation: str, refused: Refused, now_ms: float) -> None:
        """The worker decides finally: back to its place in the queue, or the end."""
        worker = self._workers[incarnation]
        worker.draining = worker.draining or refused.code == "draining"
        request = self._unplace(worker, refused.row)
        gateway = self._gateways.get(refused.row.gateway)
        if request is None or request.submit is None or gateway is None:
            return
        if refused.code in _RETRYABLE_REFUSALS:
            request.worker, request.prefilled = "", False
            gateway.rows[request.row] = request
            self._queues[request.submit.digest, request.klass].push(request)
        else:
            self._end(request, "refused", f"{refused.code}: {refused.message}")

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        for worker in [w for w in self._workers.values() if w.is_dead(now_ms)]:
            self.worker_lost(worker.hello.incarnation, "silent for too long", now_ms)
        for gateway in list(self._gateways.values()):
            if gateway.lost_ms is None:
                if now_ms - gateway.heard_ms > self._limits.gateway_silence_ms:
                    gateway.lost_ms = now_ms
            elif now_ms - gateway.lost_ms > self._limits.gateway_grace_ms:
                self._forget_gateway(gateway)
        served = {w.hello.digest for w in self._workers.values()}
        for (digest, _), queue in list(self._queues.items()):
            self._expire(digest, queue, digest in served, now_ms)
        for digest in {digest for digest, _ in self._queues}:
            self._place(digest, now_ms)

    def _expire(self, digest: str, queue: Queue, is_served: bool, now_ms: float) -> None:
        for request in [r for r in queue if r.deadline_ms <= now_ms]:
            queue.remove(request.row)
            self._end(
                request, "deadline_exceeded", f"waited {now_ms - request.arrived_ms:.0f} ms in the queue"
            )
        if is_served:
            self._without_replica_ms.pop(digest, None)
            return
        since_ms = self._without_replica_ms.setdefault(digest, now_ms)
        if now_ms - since_ms >= self._limits.no_replica_grace_ms:
            for request in list(queue):
                queue.remove(request.row)
                self._end(request, "no_replica", "no replica serves this model now", 10_000)

    def _forget_gateway(self, gateway: Gateway) -> None:
        del self._gateways[gateway.incarnation]
        for request in gateway.rows.values():
            if not request.worker:
                self._dequeue(request)
        for worker in self._workers.values():
            worker.send(GatewayGone(gateway=gateway.incarnation))

    # -- placing ------------------------------------------------------------------------------------------

    def _place(self, digest: str, now_ms: float) -> None:
        workers = [w for w in self._workers.values() if w.hello.digest == digest and w.may_take(now_ms)]
        if not workers:
            return
        for klass in CLASSES:
            queue = self._queues[digest, klass]
            while request := queue.head():
                if request.deadline_ms <= now_ms:
                    break  # tick ends it; nothing expired reaches a replica
                replicas = [w.replica() for w in workers]
                chosen = placement_choose(replicas, request.prompt_tokens)
                if chosen is None:
                    if any(is_servable(r, request.prompt_tokens) for r in replicas):
                        return  # strict order: nobody overtakes the head, batch never overtakes interactive
                    queue.remove(request.row)
                    self._end(request, "refused", "the prompt is longer than any replica can hold")
                    continue
                queue.remove(request.row)
                self._run(request, self._workers[chosen.key], now_ms)

    def _run(self, request: Request, worker: Worker, now_ms: float) -> None:
        assert request.submit is not None
        request.worker = worker.hello.incarnation
        worker.add(request)
        queue_ms = int(now_ms - request.arrived_ms)
        self._gateways[request.row.gateway].send(
            Placed(sid=request.row.sid, worker=request.worker, queue_ms=queue_ms)
        )
        worker.send(Run(gateway=request.row.gateway, submit=request.submit))

    def _unplace(self, worker: Worker, row: RowKey) -> Request | None:
        request = worker.remove(row)
        if gateway := self._gateways.get(row.gateway):
            gateway.rows.pop(row, None)
        return request

    def _dequeue(self, request: Request) -> None:
        if request.submit is not None:
            self._queues[request.submit.digest, request.klass].remove(request.row)

    def _end(self, request: Request, code: str, message: str, retry_after_ms: int = 0) -> None:
        if code != "cancelled":
            self._refused += 1
        if gateway := self._gateways.get(request.row.gateway):
            gateway.rows.pop(request.row, None)
            gateway.send(
                Ended(sid=request.row.sid, code=code, message=message, retry_after_ms=retry_after_ms)
            )

    # -- observing ----------------------------------------------------------------------------------------

    def fleet_state(self, now_ms: float, unix_ms: int) -> FleetState:
        self._fleet_seq += 1
        queues = [
            QueueView(
                model=self._models.get(digest, digest),
                klass=klass,
                depth=len(queue),
                oldest_ms=queue.oldest_ms(now_ms),
            )
            for (digest, klass), queue in sorted(self._queues.items())
        ]
        workers = [w.view(now_ms) for w in sorted(self._workers.values(), key=lambda w: w.hello.id)]
        return FleetState(
            seq=self._fleet_seq,
            at_ms=unix_ms,
            workers=workers,
            queues=queues,
            gateways=[g.view() for g in sorted(self._gateways.values(), key=lambda g: g.id)],
            submitted=self._submitted,
            refused=self._refused,
            tokens_per_s=sum(w.tokens_per_s for w in workers),
        )
