"""Whether a request may wait at all: by the work ahead of it, so that nobody waits for nothing.

A flow's expected wait is its own backlog over the rate at which the flow is served. That bounds each tenant's
queue at what it can be given before its deadline; a bound of the whole class stands behind it, which a flow
within its part of it does not run into.
"""

from dataclasses import dataclass
from math import ceil, inf
from random import Random

from policy.fair_queue import FairQueue
from policy.flow_state import FlowState
from policy.queue_settings import QueueSettings
from policy.retry_bookings import RetryBookings
from policy.waiting import Refusal, Waiting

BYTES_PER_TOKEN = 4
LEAST_RETRY_S, MOST_RETRY_S = 1, 60
RETRY_SPREAD = 0.2  # so that clients refused together do not return together
BOOKED_PART = 0.8  # of a flow's rate that is booked ahead: the rest is for who comes for the first time
MOST_KEPT = 0.5  # of what may wait, for clients that were told to come back


@dataclass(frozen=True, slots=True)
class Drain:
    """How fast a class is served. `rate`: machine seconds of estimated work a second, 0 when not known."""

    rate: float
    is_guaranteed_only: bool = False  # flows are not counted on to get more than their part
    replicas: int = 1
    free_rows: int = 0  # that could begin now: what fits there waits for prompts alone


def flow_part(queue: FairQueue, state: FlowState | None, weight: float) -> float:
    """The flow's weight as a part of all. `state` is None for a flow that has nothing here yet."""
    return weight / (queue.weight if state else queue.weight + weight)


def wait_ms(queue: FairQueue, state: FlowState | None, weight: float, work_us: float, drain: Drain) -> float:
    """Until this much work of the flow is done: it is given its part of everything, or of what is left by
    flows that ask for less than theirs. 0 while nobody knows."""
    if drain.rate <= 0 or work_us <= 0:
        return 0.0
    rate = drain.rate * flow_part(queue, state, weight)
    if not drain.is_guaranteed_only:
        is_queued = state is not None and bool(state.waiting)
        others = queue.queued_weight - (weight if is_queued else 0.0)
        light = queue.light_rate - (state.arrival_rate if state and not is_queued else 0.0)
        rate = max(rate, (drain.rate - max(0.0, light)) * weight / (weight + max(0.0, others)))
    return work_us / 1000 / rate


def _beyond_room_us(state: FlowState, waiting: Waiting, free_rows: int) -> float:
    """Of the flow's waiting work, what has to wait until running requests end."""
    beyond = state.queued_rows + waiting.choices - free_rows
    return state.queued_us * min(1.0, max(0.0, beyond / max(1, state.queued_rows)))


class Admission:
    """`rng` spreads retries."""

    def __init__(self, settings: QueueSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self.bookings = RetryBookings()

    def late(
        self,
        queue: FairQueue,
        waiting: Waiting,
        prefill_ms: float,
        drain: Drain,
        now_ms: float,
        *,
        is_booked: bool,
    ) -> Refusal | None:
        """Refused if its first token would be late, or its last one where the client waits for that. None:
        `promised_ms` says how long it is expected to wait.

        `prefill_ms`: from its start to its first token. `is_booked`: it was told to come back now.
        """
        state = queue.flows.get(waiting.flow)
        # Who was told to come back is let in a little later than others would be: it was an estimate too.
        admit_part = (1 + self._settings.admit_part) / 2 if is_booked else self._settings.admit_part
        allowed_ms = admit_part * max(0.0, waiting.deadline_ms - now_ms)
        all_us = state.queued_us if state else 0
        backlog_us = _beyond_room_us(state, waiting, drain.free_rows) if state else 0
        kept_us = 0 if is_booked else self.bookings.booked_us(waiting.flow, now_ms)[0]
        backlog_ms = wait_ms(queue, state, waiting.weight, backlog_us, drain)
        if state and waiting.prompt_tokens and drain.rate > 0:  # room or not, prompts come one after another
            prompts_ms = prefill_ms / self._settings.prefill_inflation * state.queued_tokens
            backlog_ms = max(backlog_ms, prompts_ms / waiting.prompt_tokens / max(1, drain.replicas))
        kept_ms = min(wait_ms(queue, state, waiting.weight, kept_us, drain), MOST_KEPT * allowed_ms)
        what, own_ms = "first", prefill_ms
        if waiting.whole_by_ms < inf:
            whole_ms = admit_part * max(0.0, waiting.whole_by_ms - now_ms)
            if waiting.service_ms - whole_ms > own_ms - allowed_ms:  # it is the harder one to keep
                what, own_ms, allowed_ms = "last", waiting.service_ms, whole_ms
        expected_ms = backlog_ms + kept_ms + own_ms
        if expected_ms <= allowed_ms:
            # Room may be taken by others before: only what exceeds the worst is a surprise.
            worst_ms = wait_ms(queue, state, waiting.weight, all_us, drain)
            waiting.promised_ms = now_ms - waiting.arrived_ms + max(worst_ms, backlog_ms)
            return None
        used_ms, limit_ms = ceil(expected_ms), int(allowed_ms)
        message = f"its {what} token would take {used_ms} ms; {limit_ms} ms are left"
        told_ms = 0  # waiting does not help when it takes too long by itself
        if own_ms <= allowed_ms:
            told_ms = self.told_ms(queue, waiting, own_ms - allowed_ms, drain, now_ms)
        return Refusal("deadline_unmeetable", message, told_ms, used_ms, limit_ms, "wait_ms")

    def told_ms(
        self,
        queue: FairQueue,
        waiting: Waiting,
        more_ms: float,
        drain: Drain,
        now_ms: float,
        *,
        least_ms: float = 0.0,
    ) -> int:
        """When to come back: after what its flow has here and whom it told before, and `more_ms`. A place is
        booked. 0: there is none within what may be told, or nobody knows, so nothing is promised."""
        if drain.rate <= 0:
            return 0
        state = queue.flows.get(waiting.flow)
        _, booked_us = self.bookings.booked_us(waiting.flow, now_ms)
        all_us = (state.queued_us if state else 0) + booked_us + waiting.work_us
        after_ms = wait_ms(queue, state, waiting.weight, all_us / BOOKED_PART, drain) + more_ms
        seconds = max(ceil(max(after_ms, least_ms) / 1000), LEAST_RETRY_S)
        told_ms = round(1000 * seconds * self._rng.uniform(1, 1 + RETRY_SPREAD))
        if told_ms > 1000 * MOST_RETRY_S or not self.bookings.book(waiting, now_ms + told_ms):
            return 0
        return told_ms

    def full(
        self, queue: FairQueue, waiting: Waiting, drain: Drain, now_ms: float, *, is_booked: bool
    ) -> Refusal | None:
        """Refused if the class can hold no more. Flows within their part may still add: others filled it. So
        may who was told to come back now."""
        settings = self._settings
        state = queue.flows.get(waiting.flow)
        part = flow_part(queue, state, waiting.weight)
        most = self._most_requests(queue, waiting, drain, now_ms)
        own = len(state.waiting) if state else 0
        is_above = own >= max(1, part * most) and not is_booked
        if queue.depth >= most and (is_above or queue.depth >= 2 * settings.queue_most):
            mean_ms = queue.queued_us / queue.depth / 1000
            after_ms = (queue.depth - most + 1) * mean_ms / drain.rate if drain.rate > 0 else 0.0
            message = "too many requests are waiting for this model"
            told_ms = self.told_ms(queue, waiting, 0.0, drain, now_ms, least_ms=after_ms)
            return Refusal("queue_full", message, told_ms, queue.depth, most, "queued_requests")
        used = BYTES_PER_TOKEN * (queue.queued_tokens + waiting.prompt_tokens)
        own_bytes = BYTES_PER_TOKEN * ((state.queued_tokens if state else 0) + waiting.prompt_tokens)
        bound = settings.queue_bytes
        if used > bound and ((own_bytes > part * bound and not is_booked) or used > 2 * bound):
            message = "the prompts that wait for this model take too much memory"
            told_ms = self.told_ms(queue, waiting, 0.0, drain, now_ms)
            return Refusal("queue_full", message, told_ms, used, bound, "queued_bytes")
        return None

    def _most_requests(self, queue: FairQueue, waiting: Waiting, drain: Drain, now_ms: float) -> int:
        """What leaves the queue within the deadline, at the mean work of what waits."""
        settings = self._settings
        if drain.rate <= 0:
            return min(settings.queue_unknown, settings.queue_most)
        mean_us = max(1.0, (queue.queued_us + waiting.work_us) / (queue.depth + 1))
        most = drain.rate * 1000 * max(0.0, waiting.deadline_ms - now_ms) / mean_us
        return int(min(max(most, settings.queue_least), settings.queue_most))
