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
from policy.placer import OVER_TO_GUARANTEED, Placed, Placer
from policy.priority_cutoff import OPEN_AFTER_MS
from policy.queue_settings import QueueSettings
from policy.queue_views import oldest_ms
from policy.waiting import LevelChange, Refusal, Waiting
from policy.work import WorkEstimate

SHED_MS = OPEN_AFTER_MS  # what an overload lasts at least
CALM_PART = 0.1  # of the time a request has: while nobody waits longer, the fleet takes in what comes


class Entrance:
    def __init__(self, settings: QueueSettings, placer: Placer, rng: Random, now_ms: float) -> None:
        self._inflation = settings.prefill_inflation
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

    def refusal(self, waiting: Waiting, estimate: WorkEstimate, now_ms: float) -> Refusal | None:
        """None: it may wait."""
        if refusal := self.unservable(waiting):
            return refusal
        bookings = self._admission.bookings
        booking = bookings.find(waiting, now_ms)
        is_batch, is_booked = waiting.flow.klass == BATCH, booking is not None
        if is_batch:
            refusal = self._refuse_batch(waiting, now_ms, is_booked=is_booked)
        else:
            refusal = self._refuse_interactive(waiting, estimate, now_ms, is_booked=is_booked)
        if refusal is None and booking is not None:
            bookings.redeem(waiting.flow, booking)
        return refusal

    def told_ms(self, waiting: Waiting, now_ms: float) -> int:
        """When a request that waited in vain may come back, a place booked. 0: nothing is promised."""
        return self._admission.told_ms(self._placer.queue(waiting.flow), waiting, 0.0, self.drain, now_ms)

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

    def ended(self, placed: Placed, estimate: WorkEstimate, now_ms: float, *, was_cut: bool) -> None:
        """`was_cut`: before all its output was produced."""
        waiting = placed.waiting
        if placed.prefilled_ms is None or not waiting.work_us:  # of an adopted one nothing was estimated
            return
        work_us = max(0, waiting.work_us - estimate.prefill_us(waiting))
        if was_cut:  # how far it came, the time it had says
            decode_ms = estimate.service_ms(waiting, 0.0)
            work_us = round(work_us * min(1.0, (now_ms - placed.prefilled_ms) / max(decode_ms, 1.0)))
        self.done(waiting, work_us)

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

    def _refuse_interactive(
        self, waiting: Waiting, estimate: WorkEstimate, now_ms: float, *, is_booked: bool
    ) -> Refusal | None:
        queue, admission, guards = self._placer.queue(waiting.flow), self._admission, self.guards
        drain = self._drain_for(waiting, now_ms)
        priority = guards.priority(queue, waiting, now_ms)
        first_token_ms = self._inflation * estimate.prefill_ms(waiting)
        waiting.service_ms = estimate.service_ms(waiting, self._inflation, _rows_beside(estimate, drain))
        refusal = admission.full(queue, waiting, drain, now_ms, is_booked=is_booked) or admission.late(
            queue, waiting, first_token_ms, drain, now_ms, is_booked=is_booked
        )
        if refusal is None and not is_booked and (shed := guards.sheds(queue, waiting, priority)):
            refusal = self._shed(queue, waiting, drain, now_ms, *shed)
        guards.asked(priority, admitted=refusal is None)
        return refusal

    def _refuse_batch(self, waiting: Waiting, now_ms: float, *, is_booked: bool) -> Refusal | None:
        """Batch waits as long as its deadline allows."""
        queue, drain = self._placer.queue(waiting.flow), self.drain
        if self.guards.is_overloaded and not is_booked:
            return self._shed(queue, waiting, drain, now_ms, "the model is overloaded", 0, 0)
        return self._admission.full(queue, waiting, drain, now_ms, is_booked=is_booked)

    def _shed(
        self, queue: FairQueue, waiting: Waiting, drain: Drain, now_ms: float, why: str, used: int, limit: int
    ) -> Refusal:
        told_ms = self._admission.told_ms(queue, waiting, 0.0, drain, now_ms, least_ms=SHED_MS)
        return Refusal("shed", why, told_ms, used, limit, "priority")


def _rows_beside(estimate: WorkEstimate, drain: Drain) -> float:
    """Rows of a replica's step with one more; while others wait, as many as it holds."""
    return estimate.row_limit - drain.free_rows / max(1, drain.replicas) + 1
