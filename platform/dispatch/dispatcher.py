"""The dispatcher's decisions, without sockets or clocks: every call says what time it is.

Owns the order of waiting requests and where each one was placed. Requests live in exactly one place: a queue,
or the `placed` table of one worker; `Gateway.rows` indexes both.
"""

import logging

from msgspec.structs import replace

from dispatch.backlog import Backlog
from dispatch.fleet import REFUSAL_PAUSE_MS, Absent, Gateway, Peer, Worker
from dispatch.limits import Limits
from dispatch.members import Members
from dispatch.prefill import helper_choose
from dispatch.prefixes import PrefixIndex
from dispatch.queues import CLASSES, INTERACTIVE, Request
from gpuworker.wire.messages import (
    Cancel,
    CancelRow,
    Ended,
    FleetState,
    GatewayGone,
    Hello,
    Placed,
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


class Dispatcher:
    """One dispatcher. Methods mirror the messages; `tick` must be called every HEARTBEAT_MS."""

    def __init__(self, limits: Limits, prefix_secret: bytes, now_ms: float) -> None:
        self._limits = limits
        self._prefix_secret = prefix_secret
        self._started_ms = now_ms
        self._members = Members(limits, now_ms)
        self._workers, self._gateways = self._members.workers, self._members.gateways
        self._backlog = Backlog()
        self._submitted = 0
        self._refused = 0
        self._fleet_seq = 0

    # -- gateways -----------------------------------------------------------------------------------------

    def gateway_joined(self, hello: Hello, peer: Peer, now_ms: float) -> None:
        gateway = self._gateways.get(hello.incarnation)
        if gateway is None:
            gateway = self._gateways[hello.incarnation] = Gateway(hello.id, hello.incarnation, peer, now_ms)
        gateway.id, gateway.peer, gateway.heard_ms, gateway.lost_ms = hello.id, peer, now_ms, None
        for worker in self._workers.values():
            if worker.takes_rows:
                peer.send(worker.up())

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
                gateway.peer.send(Placed(sid=row.sid, worker=known.worker, queue_ms=0))
            return
        self._submitted += 1
        klass = submit.klass if submit.klass in CLASSES else INTERACTIVE
        waited_ms = min(max(submit.waited_ms, 0), self._limits.max_wait_ms)
        left_ms = min(submit.deadline_ms, self._limits.max_wait_ms)
        request = Request(row, submit, klass, now_ms - waited_ms, now_ms + left_ms)
        self._backlog.digest_add(submit.digest, submit.model)
        queue = self._backlog.queue(submit.digest, klass)
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
            request.cancel_reason = cancel.reason
            worker.peer.send(CancelRow(row=request.row, reason=cancel.reason))
        else:
            self._backlog.remove(request)
            self._end(request, cancel.reason, "cancelled while it waited")

    # -- workers ------------------------------------------------------------------------------------------

    def worker_problem(self, hello: Hello, now_ms: float) -> tuple[str, str] | None:
        """Why this worker may not join: code and message of its refusal."""
        return self._members.worker_problem(hello, now_ms)

    def worker_joined(self, hello: Hello, peer: Peer, now_ms: float) -> None:
        """The caller has asked for `worker_problem`."""
        assert hello.capacity is not None
        for other in [w for w in self._workers.values() if w.hello.id == hello.id]:
            self.worker_lost(other.hello.incarnation, "replaced by a newer connection")
        prefixes = PrefixIndex(self._prefix_secret, hello.digest, hello.kv_dtype)
        worker = Worker(hello, hello.capacity, peer, now_ms, prefixes)
        self._workers[hello.incarnation] = worker
        self._backlog.digest_add(hello.digest, hello.model)
        choices = hello.choices or [1] * len(hello.running)
        for row, rows in dict(zip(hello.running, choices, strict=True)).items():
            self._adopt(worker, row, rows, now_ms)
        if worker.takes_rows:
            self._members.tell_gateways(worker.up())

    def _adopt(self, worker: Worker, row: RowKey, choices: int, now_ms: float) -> None:
        """Believe a row the worker runs if this dispatcher is new; else its gateway was told it is lost."""
        trusted_until_ms = self._started_ms + self._limits.rejoin_grace_ms
        gateway = self._gateways.get(row.gateway)
        known = gateway.rows.get(row) if gateway else None
        if now_ms > trusted_until_ms or (known and known.worker):
            worker.peer.send(CancelRow(row=row, reason="error"))
            return
        if gateway is None:  # it has not come back yet: what it says about the row must find it
            gateway = Gateway("", row.gateway, Absent(), now_ms, lost_ms=trusted_until_ms)
            self._gateways[row.gateway] = gateway
        if known:
            self._backlog.remove(known)
        request = Request(row, None, INTERACTIVE, now_ms, float("inf"), worker.hello.incarnation, True)
        request.adopted_choices = max(1, choices)
        worker.add(request)
        gateway.rows[row] = request
        gateway.peer.send(Placed(sid=row.sid, worker=request.worker, queue_ms=0))

    def worker_lost(self, incarnation: str, cause: str) -> None:
        worker = self._workers.pop(incarnation, None)
        if worker is None:
            return
        logger.warning("worker %s lost with %d rows: %s", worker.hello.id, len(worker.placed), cause)
        worker.peer.abort(cause)
        for request in worker.lost():
            if gateway := self._gateways.get(request.row.gateway):
                gateway.release(request)
        self._members.tell_gateways(WorkerDown(id=worker.hello.id, incarnation=incarnation, cause=cause))

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
        if request.cancel_reason:
            self._end(request, request.cancel_reason, "cancelled before it ran")
        elif refused.code in _RETRYABLE_REFUSALS:
            worker.paused_until_ms = now_ms + REFUSAL_PAUSE_MS
            request.worker, request.prefilled = "", False
            gateway.rows[request.row] = request
            self._backlog.push(request)
            self._place(request.submit.digest, now_ms)
        else:
            self._end(request, "refused", f"{refused.code}: {refused.message}")

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        self._members.forgive(now_ms)
        for worker in self._members.dead_workers(now_ms):
            self.worker_lost(worker.hello.incarnation, "silent for too long")
        for gateway in self._members.gone_gateways(now_ms):
            self._forget_gateway(gateway)
        for request in self._backlog.late(now_ms):
            self._end_late(request, now_ms)
        for request in self._backlog.unserved(
            self._members.served(), self._limits.no_replica_grace_ms, now_ms
        ):
            self._end(request, "no_replica", "no replica serves this model now", 10_000)
        for digest in self._backlog.digests:
            self._place(digest, now_ms)

    def _forget_gateway(self, gateway: Gateway) -> None:
        """Also its connection, if it has one: a gateway that wakes up must greet and submit again."""
        del self._gateways[gateway.incarnation]
        gateway.peer.abort("silent for too long")
        for request in gateway.rows.values():
            self._backlog.remove(request)
        self._members.tell_workers(GatewayGone(gateway=gateway.incarnation))

    # -- placing ------------------------------------------------------------------------------------------

    def _place(self, digest: str, now_ms: float) -> None:
        holders = self._members.holders(digest)
        for klass in CLASSES if holders else ():
            queue = self._backlog.queue(digest, klass)
            while request := queue.head():
                if request.deadline_ms <= now_ms:  # nothing expired reaches a replica
                    self._backlog.remove(request)
                    self._end_late(request, now_ms)
                    continue
                if not any(is_servable(w.replica(), request.prompt_tokens) for w in holders):
                    self._backlog.remove(request)
                    self._end(request, "refused", "the prompt is longer than any replica can hold")
                    continue
                replicas = [w.replica() for w in holders if w.may_take(now_ms)]
                chosen = placement_choose(replicas, request.prompt_tokens, request.choices)
                if chosen is None:
                    return  # strict order: nobody overtakes the head, batch never overtakes interactive
                self._run(request, self._workers[chosen.key], now_ms)

    def _run(self, request: Request, worker: Worker, now_ms: float) -> None:
        assert request.submit is not None
        left_ms = max(1, int(request.deadline_ms - now_ms))
        helper = helper_choose(self._workers.values(), request, worker, now_ms)
        run = Run(
            gateway=request.row.gateway,
            submit=replace(request.submit, deadline_ms=left_ms),
            prefill_from=helper.hello.address if helper else "",
        )
        if not worker.peer.send(run):  # its connection is at its end: somebody else, or later
            worker.paused_until_ms = now_ms + REFUSAL_PAUSE_MS
            return
        self._backlog.remove(request)
        request.worker = worker.hello.incarnation
        worker.sent(request, helper)
        queue_ms = int(now_ms - request.arrived_ms)
        self._gateways[request.row.gateway].peer.send(
            Placed(sid=request.row.sid, worker=request.worker, queue_ms=queue_ms)
        )

    def _unplace(self, worker: Worker, row: RowKey) -> Request | None:
        request = worker.remove(row)
        if request is not None and (gateway := self._gateways.get(row.gateway)):
            gateway.release(request)
        return request

    def _end_late(self, request: Request, now_ms: float) -> None:
        self._end(request, "deadline_exceeded", f"waited {now_ms - request.arrived_ms:.0f} ms in the queue")

    def _end(self, request: Request, code: str, message: str, retry_after_ms: int = 0) -> None:
        if code != "cancelled":
            self._refused += 1
        if gateway := self._gateways.get(request.row.gateway):
            gateway.release(request)
            gateway.peer.send(
                Ended(sid=request.row.sid, code=code, message=message, retry_after_ms=retry_after_ms)
            )

    # -- observing ----------------------------------------------------------------------------------------

    def fleet_state(self, now_ms: float, unix_ms: int) -> FleetState:
        self._fleet_seq += 1
        workers = [w.view(now_ms) for w in sorted(self._workers.values(), key=lambda w: w.hello.id)]
        return FleetState(
            seq=self._fleet_seq,
            at_ms=unix_ms,
            workers=workers,
            queues=self._backlog.views(now_ms),
            gateways=[g.view() for g in sorted(self._gateways.values(), key=lambda g: g.id) if g.id],
            submitted=self._submitted,
            refused=self._refused,
            tokens_per_s=sum(w.tokens_per_s for w in workers),
        )
