"""The dispatcher's decisions, without sockets, clocks or randomness: every call says what time it is.

In what order requests run, and where, the queue of their version decides (`policy.model_queue`). A request
lives in exactly one place: that queue, or the `placed` table of one worker; `Gateway.rows` indexes both.
"""

from random import Random

from dispatch.announcing import Announcing
from dispatch.answers import Answers
from dispatch.fleet import Peer
from dispatch.joining import Joining
from dispatch.leads import NO_LEADS, Leads
from dispatch.limits import Limits
from dispatch.members import Members
from dispatch.placing import Placing
from dispatch.reporting import Reporting
from dispatch.submitting import Submitting
from dispatch.versions import Version, Versions
from dispatch.views import fleet_state
from gpuworker.wire.messages import Cancel, FleetState, Hello, Refused, Report, Submit
from policy.flow import Flow


class Dispatcher:
    """One dispatcher. Methods mirror the messages; `tick` must be called every HEARTBEAT_MS."""

    def __init__(
        self, limits: Limits, prefix_secret: bytes, now_ms: float, rng: Random, leads: Leads = NO_LEADS
    ) -> None:
        """`leads`: of the dispatcher that it follows."""
        self._members = members = Members(limits, now_ms)
        self._versions = versions = Versions(limits, rng, leads)
        self._answers = answers = Answers(members)
        self._joining = Joining(limits, prefix_secret, members, versions, answers, now_ms)
        self._submitting = Submitting(limits, members, versions, answers)
        self._reporting = Reporting(members, versions, answers)
        self._placing = Placing(members, answers)
        self._announcing = Announcing(members)
        self._fleet_seq = 0

    # -- gateways -----------------------------------------------------------------------------------------

    def gateway_joined(self, hello: Hello, peer: Peer, now_ms: float) -> None:
        self._joining.gateway_joined(hello, peer, now_ms)

    def gateway_heard(self, incarnation: str, now_ms: float) -> None:
        self._members.gateway_heard(incarnation, now_ms)

    def gateway_lost(self, incarnation: str, now_ms: float) -> None:
        """Its connection is gone; `tick` ends its requests unless it comes back in time."""
        self._members.gateway_lost(incarnation, now_ms)

    def submit(self, incarnation: str, submit: Submit, now_ms: float) -> None:
        self._serve(self._submitting.submit(incarnation, submit, now_ms), now_ms)

    def cancel(self, incarnation: str, cancel: Cancel) -> None:
        self._submitting.cancel(incarnation, cancel)

    # -- workers ------------------------------------------------------------------------------------------

    def worker_problem(self, hello: Hello, now_ms: float) -> tuple[str, str] | None:
        """Why this worker may not join: code and message of its refusal."""
        return self._members.worker_problem(hello, now_ms)

    def worker_joined(self, hello: Hello, peer: Peer, now_ms: float) -> None:
        """The caller has asked for `worker_problem`."""
        self._joining.worker_joined(hello, peer, now_ms)

    def worker_heard(self, incarnation: str, now_ms: float) -> None:
        self._members.worker_heard(incarnation, now_ms)

    def worker_lost(self, incarnation: str, cause: str) -> None:
        """Its connection is gone."""
        self._joining.worker_lost(incarnation, cause, has_closed=True)

    def report(self, incarnation: str, report: Report, now_ms: float) -> None:
        if report.hung:
            self._joining.worker_lost(incarnation, "a step of it hangs")
            return
        self._serve(self._reporting.report(incarnation, report, now_ms), now_ms)

    def refused(self, incarnation: str, refused: Refused, now_ms: float) -> None:
        version = self._reporting.refused(incarnation, refused, now_ms)
        if refused.digest and refused.digest != self._members.workers[incarnation].hello.digest:
            self._joining.worker_lost(incarnation, f"holds {refused.digest}, which is not what it said")
        self._serve(version, now_ms)

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        self._members.forgive(now_ms)
        for worker in self._members.dead_workers(now_ms):
            self._joining.worker_lost(worker.hello.incarnation, "silent for too long")
        for gateway in self._members.gone_gateways(now_ms):
            self._joining.gateway_forget(gateway)
        for version in self._versions.hopeless(now_ms):
            for request in self._members.waiting(version.digest) if version.is_waited_for else ():
                version.queue.remove(request)
                self._answers.no_replica(request)
        for version in self._versions:
            self._announcing.levels_tell(version, version.queue.tick(now_ms), now_ms)
            self._serve(version, now_ms)

    def _serve(self, version: Version | None, now_ms: float) -> None:
        if version is not None:
            self._placing.place(version, now_ms)
            self._announcing.shares_tell(version, now_ms)

    # -- observing ----------------------------------------------------------------------------------------

    def leads(self) -> dict[str, dict[Flow, int]]:
        """Of each version's flows, for the dispatcher that follows."""
        return {version.digest: version.queue.leads() for version in self._versions}

    def fleet_state(self, now_ms: float, unix_ms: int) -> FleetState:
        self._fleet_seq += 1
        return fleet_state(
            self._members,
            self._versions,
            seq=self._fleet_seq,
            now_ms=now_ms,
            unix_ms=unix_ms,
            submitted=self._submitting.submitted,
            refused=self._answers.refusals,
        )
