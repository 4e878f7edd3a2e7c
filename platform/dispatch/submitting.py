"""What gateways ask for: to run a request, which is refused at once or waits; and to stop one."""

from dispatch.answers import Answers
from dispatch.limits import Limits
from dispatch.members import Members
from dispatch.requests import Request, request_make, waiting_make
from dispatch.versions import Version, Versions
from gpuworker.wire.messages import Cancel, CancelRow, RowKey, Submit


class Submitting:
    def __init__(self, limits: Limits, members: Members, versions: Versions, answers: Answers) -> None:
        self.submitted = 0  # since start
        self._limits = limits
        self._workers, self._gateways = members.workers, members.gateways
        self._versions = versions
        self._answers = answers

    def submit(self, incarnation: str, submit: Submit, now_ms: float) -> Version | None:
        """The version in whose queue it waits; None: it does not."""
        gateway = self._gateways[incarnation]
        row = RowKey(incarnation, submit.sid)
        if known := gateway.rows.get(row):
            if known.worker:  # submitted again because our answer was lost with a connection
                self._learn(known, submit, now_ms)
                self._answers.placed(known)
            return None
        self.submitted += 1
        if lost := self._workers.get(submit.lost_on):
            lost.is_doubted = True
        version = self._versions.add(submit.digest, submit.model, now_ms)
        request = request_make(row, submit, self._limits, now_ms)
        request.waiting = waiting_make(request, submit)
        request.waiting.chains = version.chains(submit)
        request.waiting.cached_tokens = version.queue.prefixes.most(request.waiting.chains, now_ms)
        gateway.rows[row] = request
        # One that waited elsewhere was let in there: only a new one may be refused for what waits before it.
        is_known = submit.waited_ms > 0 or submit.moves > 0
        enter = version.queue.readmit if is_known else version.queue.submit
        if refusal := enter(request.waiting, now_ms):
            self._answers.refused(request, refusal)
            return None
        return version

    def _learn(self, known: Request, submit: Submit, now_ms: float) -> None:
        """What a worker announced without it, so that the request can be placed elsewhere."""
        if known.submit is not None or submit.n != known.adopted_choices:
            return
        made = request_make(known.row, submit, self._limits, now_ms)
        known.submit, known.arrived_ms = submit, made.arrived_ms
        known.deadline_ms, known.start_by_ms = made.deadline_ms, made.start_by_ms
        known.waiting = waiting_make(known, submit)
        if version := self._versions.get(submit.digest):
            known.waiting.chains = version.chains(submit)

    def cancel(self, incarnation: str, cancel: Cancel) -> None:
        request = self._gateways[incarnation].rows.get(RowKey(incarnation, cancel.sid))
        if request is None:
            return
        if worker := self._workers.get(request.worker):
            request.cancel_reason = cancel.reason
            worker.peer.send(CancelRow(row=request.row, reason=cancel.reason))
        else:
            self._versions.unqueue(request)
            self._answers.ended(request, cancel.reason, "cancelled while it waited")
