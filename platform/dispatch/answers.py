"""What gateways are told of their requests: placed, or ended without tokens."""

from dispatch.members import Members
from dispatch.requests import Request
from gpuworker.wire.messages import Ended, Placed
from policy.model_queue import ModelQueue
from policy.waiting import Refusal

NO_REPLICA_RETRY_MS = 10_000


class Answers:
    def __init__(self, members: Members) -> None:
        self.refusals = 0  # since start: ended, and nobody had cancelled them
        self._gateways = members.gateways

    def placed(self, request: Request, queue_ms: int = 0) -> None:
        """Ignored when its gateway is gone."""
        if gateway := self._gateways.get(request.row.gateway):
            gateway.peer.send(Placed(sid=request.row.sid, worker=request.worker, queue_ms=queue_ms))

    def ended(
        self, request: Request, code: str, message: str, *, retry_after_ms: int = 0, reason: str = ""
    ) -> None:
        self._end(
            request,
            Ended(
                sid=request.row.sid, code=code, message=message, retry_after_ms=retry_after_ms, reason=reason
            ),
        )

    def late(self, request: Request, queue: ModelQueue, now_ms: float) -> None:
        """It cannot start in time any more: for its own deadline, or for how long such requests wait."""
        message = f"waited {now_ms - request.arrived_ms:.0f} ms in the queue"
        if request.start_by_ms < request.deadline_ms and request.waiting is not None:
            retry_after_ms = queue.retry_after_ms(request.waiting, now_ms)
            self.ended(request, "deadline_unmeetable", message, retry_after_ms=retry_after_ms)
        else:
            self.ended(request, "deadline_exceeded", message)

    def too_long(self, request: Request) -> None:
        """Those that could hold it have gone."""
        self.ended(request, "refused", "the prompt is longer than any replica can hold", reason="too_long")

    def no_replica(self, request: Request) -> None:
        message = "no replica serves this model now"
        self.ended(request, "no_replica", message, retry_after_ms=NO_REPLICA_RETRY_MS)

    def refused(self, request: Request, refusal: Refusal) -> None:
        """It may not wait, says the queue of its version."""
        never_fits = refusal.code == "unservable"
        self._end(
            request,
            Ended(
                sid=request.row.sid,
                code="refused" if never_fits else refusal.code,
                message=refusal.message,
                retry_after_ms=refusal.retry_after_ms,
                reason="too_long" if never_fits else "",
                name=refusal.name,
                used=refusal.used,
                limit=refusal.limit,
            ),
        )

    def _end(self, request: Request, ended: Ended) -> None:
        if ended.code != "cancelled":
            self.refusals += 1
        if gateway := self._gateways.get(request.row.gateway):
            gateway.release(request)
            gateway.peer.send(ended)
