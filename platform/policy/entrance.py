"""Who may wait: what no replica can hold, what would be too late, what is too much, and who is shed.

Joins admission by work and the guards; owns neither queue.
"""

from dataclasses import replace
from random import Random

from policy.admission import Admission, Drain
from policy.drain_rate import DrainRate
from policy.fair_queue import FairQueue
from policy.flow import BATCH
from policy.guards import Guards
from policy.placer import OVER_TO_GUARANTEED, Placer
from policy.priority_cutoff import OPEN_AFTER_MS
from policy.queue_settings import QueueSettings
from policy.queue_views import oldest_ms
from policy.waiting import LevelChange, Refusal, Waiting

SHED_MS = OPEN_AFTER_MS  # what an overload lasts at least
CALM_PART = 0.1  # of the time a request has: while nobody waits longer, the fleet takes in what comes


class Entrance:
    def __init__(self, settings: QueueSettings, placer: Placer, rng: Random, now_ms: float) -> None:
        self._placer = placer
        self._rooms = placer.rooms
        self._admission = Admission(settings, rng)
        self._drain_rate = DrainRate(now_ms)
        self.guards = Guards(settings, now_ms)
        self._waited_ms = 0.0  # by the interactive request that waits longest, at the last tick

    @property
    def drain(self) -> Drain:
        """Of interactive requests."""
        rate = self._drain_rate.per_replica * len(self._rooms)
        return Drain(
            rate,
            is_guaranteed_only=self.guards.level >= OVER_TO_GUARANTEED,
            replicas=len(self._rooms),
        )

    def _drain_for(self, waiting: Waiting, now_ms: float) -> Drain:
        is_calm = self._waited_ms <= CALM_PART * (waiting.deadline_ms - now_ms)
        return replace(self.drain, free_rows=self._rooms.free_rows) if is_calm else self.drain

    def refusal(self, waiting: Waiting, first_token_ms: float, now_ms: float) -> Refusal | None:
        """None: it may wait. `first_token_ms`: from its start to its first token."""
        if refusal := self.unservable(waiting):
            return refusal
        queue = self._placer.queue(waiting.flow)
        if waiting.flow.klass == BATCH:
            return self._refuse_batch(queue, waiting, now_ms)
        drain, admission, guards = self._drain_for(waiting, now_ms), self._admission, self.guards
        priority = guards.priority(queue, waiting, now_ms)
        booking = admission.bookings.find(waiting, now_ms)
        is_booked = booking is not None
        refusal = admission.full(queue, waiting, drain, now_ms) or admission.late(
            queue, waiting, first_token_ms, drain, now_ms, is_booked=is_booked
        )
        if refusal is None and not is_booked and (shed := guards.sheds(queue, waiting, priority)):
            told_ms = admission.told_ms(queue, waiting, 0.0, drain, now_ms, least_ms=SHED_MS)
            refusal = Refusal("shed", shed[0], told_ms, shed[1], shed[2], "priority")
        guards.asked(priority, admitted=refusal is None)
        if refusal is None and booking is not None:
            admission.bookings.redeem(waiting.flow, booking)
        return refusal

    def unservable(self, waiting: Waiting) -> Refusal | None:
        """It is longer than any replica can hold."""
        most = self._rooms.most_tokens
        if not len(self._rooms) or waiting.prompt_tokens + 1 <= most:
            return None
        message = "the prompt is longer than any replica can hold"
        return Refusal("unservable", message, 0, waiting.prompt_tokens + 1, most, "replica_tokens")

    def started(self, waiting: Waiting, now_ms: float) -> None:
        if waiting.flow.klass != BATCH:
            self.guards.left(waiting, now_ms)

    def done(self, waiting: Waiting, work_us: int) -> None:
        """So much of its work was done."""
        if waiting.flow.klass != BATCH:
            self._drain_rate.done(work_us)

    def ran_dry(self) -> None:
        """No interactive request waits."""
        self._drain_rate.ran_dry()

    def drain_tick(self, now_ms: float, *, is_bounded: bool) -> None:
        """`is_bounded`: replicas have told their costs."""
        if not self._placer.interactive.depth:
            self._drain_rate.ran_dry()
        self._drain_rate.tick(now_ms, len(self._rooms), is_bounded=is_bounded)

    def tick(self, now_ms: float) -> LevelChange | None:
        self._admission.bookings.tick(now_ms)
        self._waited_ms = oldest_ms(self._placer.interactive.flows.values(), now_ms)
        return self.guards.tick(self._placer.interactive, self.drain, now_ms)

    # -- inside -------------------------------------------------------------------------------------------

    def _refuse_batch(self, queue: FairQueue, waiting: Waiting, now_ms: float) -> Refusal | None:
        """Batch waits as long as its deadline allows."""
        if self.guards.is_overloaded:
            return Refusal(
                "shed", "the model is overloaded", self._admission.retry_ms(SHED_MS), 0, 0, "priority"
            )
        return self._admission.full(queue, waiting, self.drain, now_ms)
