"""What workers tell: rows that were computed, ended or not taken, machine time, and the room they have."""

from dispatch.answers import Answers
from dispatch.fleet import REFUSAL_PAUSE_MS
from dispatch.members import Members
from dispatch.requests import Request
from dispatch.versions import Version, Versions
from gpuworker.wire.messages import Refused, Report
from policy.flow import Flow

# Refusals that another moment or another replica may cure; anything else ends the request.
_RETRYABLE_REFUSALS = ("capacity", "draining", "misrouted")
MISROUTED_MOST = 3  # then whoever sends it there will not learn


class Reporting:
    def __init__(self, members: Members, versions: Versions, answers: Answers) -> None:
        self._workers, self._gateways = members.workers, members.gateways
        self._versions = versions
        self._answers = answers

    def report(self, incarnation: str, report: Report, now_ms: float) -> Version | None:
        """The version whose queue may go on; None: it was forgotten, only a prefill worker holds it."""
        worker = self._workers[incarnation]
        version = self._versions.get(worker.hello.digest)
        if version is not None:
            for row in report.prefilled:
                if request := worker.placed.get(row):
                    version.queue.prefilled(request)
            for work in report.work:
                version.queue.worked(incarnation, Flow(work.tenant, work.klass), work.total_us)
        worker.reported(report, now_ms)
        cut = frozenset(report.cut)
        for row in report.ended:
            if request := worker.remove(row):
                self._forget(request, version, now_ms, was_cut=row in cut)
        if version is not None and worker.takes_rows:
            version.replica_update(worker, now_ms)
        return version

    def refused(self, incarnation: str, refused: Refused, now_ms: float) -> Version | None:
        """The worker decides finally: back to its place in the queue, or the end. The version whose queue
        may go on."""
        worker = self._workers[incarnation]
        worker.draining = worker.draining or refused.code == "draining"
        version = self._versions.get(worker.hello.digest)
        request = worker.remove(refused.row)
        if version is None or request is None:
            return version
        waiting = request.waiting if self._is_wanted(request) else None
        request.misrouted += refused.code == "misrouted"
        may_retry = refused.code in _RETRYABLE_REFUSALS and request.misrouted < MISROUTED_MOST
        if request.waiting is not None:  # nothing was computed: what it was charged is given back
            version.queue.requeue(request.waiting, now_ms)
        if may_retry and waiting is not None and not request.cancel_reason:
            worker.paused_until_ms = now_ms + REFUSAL_PAUSE_MS
            request.worker, request.prefilled = "", False
        else:
            version.queue.remove(request)
            self._forget(request, version, now_ms, was_cut=True)
            if waiting is not None and request.cancel_reason:
                self._answers.ended(request, request.cancel_reason, "cancelled before it ran")
            elif waiting is not None:
                message = f"{refused.code}: {refused.message}"
                self._answers.ended(request, "refused", message, reason=refused.code)
        version.replica_update(worker, now_ms)
        return version

    def _is_wanted(self, request: Request) -> bool:
        """Whether its gateway is there, and its number does not stand for another attempt by now."""
        gateway = self._gateways.get(request.row.gateway)
        return gateway is not None and gateway.rows.get(request.row) is request

    def _forget(self, request: Request, version: Version | None, now_ms: float, *, was_cut: bool) -> None:
        if gateway := self._gateways.get(request.row.gateway):
            gateway.release(request)
        if version is not None:
            was_cut = was_cut or bool(request.cancel_reason) or now_ms >= request.deadline_ms
            version.queue.ended(request, now_ms, was_cut=was_cut)
