"""Sends requests to workers, in the order and to the replica that their version's queue says."""

from msgspec.structs import replace

from dispatch.answers import Answers
from dispatch.fleet import REFUSAL_PAUSE_MS, Worker
from dispatch.members import Members
from dispatch.prefill import helper_choose
from dispatch.requests import Request
from dispatch.versions import Version
from gpuworker.wire.messages import Run
from policy.waiting import Placement, Waiting


class Placing:
    def __init__(self, members: Members, answers: Answers) -> None:
        self._members = members
        self._answers = answers

    def place(self, version: Version, now_ms: float) -> None:
        """Whatever changed. Nothing whose deadline cannot be met reaches a replica."""
        version.replicas_refresh(now_ms)
        for waiting in version.queue.expired(now_ms):
            self._answers.late(request_of(waiting), version.queue, now_ms)
        while placement := version.queue.take(now_ms):
            self._run(version, placement, now_ms)

    def _run(self, version: Version, placement: Placement, now_ms: float) -> None:
        waiting, worker = placement.waiting, version.holders[placement.replica]
        request = request_of(waiting)
        helper = helper_choose(self._members.workers.values(), request, worker, now_ms)
        if not worker.peer.send(_run_make(request, waiting, worker, helper, now_ms)):
            # Its connection is at its end: somebody else, or later.
            worker.paused_until_ms = now_ms + REFUSAL_PAUSE_MS
            version.queue.requeue(waiting, now_ms)
        else:
            request.worker = worker.hello.incarnation
            worker.sent(request, helper)
            self._answers.placed(request, int(now_ms - request.arrived_ms))
        version.replica_update(worker, now_ms)


def request_of(waiting: Waiting) -> Request:
    request = waiting.key
    assert isinstance(request, Request)
    return request


def _run_make(
    request: Request, waiting: Waiting, worker: Worker, helper: Worker | None, now_ms: float
) -> Run:
    """With what is left of its deadline, and as the flow that the queue made of it: batch may be urgent."""
    assert request.submit is not None
    submit = replace(
        request.submit,
        deadline_ms=max(1, int(request.deadline_ms - now_ms)),
        klass=waiting.flow.klass,
        weight=waiting.weight,
    )
    return Run(
        gateway=request.row.gateway,
        submit=submit,
        prefill_from=helper.hello.address if helper else "",
        worker=worker.hello.incarnation,
    )
