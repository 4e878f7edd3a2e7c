"""What gateways ask for: to run a request, which is refused at once or waits; and to stop one."""

from dispatch.answers import Answers
from dispatch.fleet import REFUSAL_PAUSE_MS
from dispatch.limits import Limits
from dispatch.members import Members
from dispatch.requests import request_make, waiting_make
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
                self._answers.placed(known)
            return None
        self.submitted += 1
        if lost := self._workers.get(
            submit.lost_on
        ):  # dead, and its gateway saw that first, or out of its reach
            lost.paused_until_ms = now_ms + REFUSAL_PAUSE_MS
        version = self._versions.add(submit.digest, submit.model, now_ms)
        request = request_make(row, submit, self._limits, now_ms)
        request.waiting = waiting_make(request, submit)
        request.waiting.chains = version.chains(submit)
        request.waiting.cached_tokens = version.queue.prefixes.most(request.waiting.chains, now_ms)
        gateway.rows[row] = request
        enter = version.queue.readmit if submit.moves else version.queue.submit
        if refusal := enter(request.waiting, now_ms):
            self._answers.refused(request, refusal)
            return None
        return version

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
