"""Everything that decides for one model version: who may wait, who is next, and on which replica it runs.

Used by the dispatcher and by the fleet simulator. Pure: the caller says what time it is. What waits is in one
of two fair queues, interactive requests and batch; batch whose deadline is near moves to the first.
"""

from collections.abc import Hashable, Mapping, Sequence
from random import Random

from policy import queue_views as views
from policy.backlog import Backlog
from policy.entrance import Entrance
from policy.failover_budget import FailoverBudget
from policy.fair_queue import FairQueue
from policy.flow import Flow
from policy.placement import Replica
from policy.placer import Placer
from policy.queue_settings import QueueSettings
from policy.router_index import PrefixHolders
from policy.waiting import FlowView, LevelChange, Placement, Refusal, Waiting
from policy.work import WorkEstimate

RESUME_MS = 5_000.0  # for requests of a predecessor to come back


class ModelQueue:
    """A replica as told is what it reported and everything placed there since: tell it after every report.

    `rng` spreads the retries of clients that are refused.
    """

    def __init__(self, settings: QueueSettings, now_ms: float, rng: Random | None = None) -> None:
        rng = rng or Random(0)  # noqa: S311 - hides nothing
        self._placer = Placer(settings, now_ms, Random(rng.getrandbits(32)))  # noqa: S311
        self._interactive, self._batch = self._placer.interactive, self._placer.batch
        self._queues = (self._interactive, self._batch)
        self._entrance = Entrance(settings, self._placer, rng, now_ms)
        self._backlog = Backlog(settings, self._placer, self._entrance.ran_dry)
        self._failovers = FailoverBudget(now_ms)
        self._estimate = WorkEstimate()
        self._sequence = 0
        self._now_ms = self._ticked_ms = now_ms
        self._most_tokens_fell = False

    # -- requests -----------------------------------------------------------------------------------------

    def submit(self, waiting: Waiting, now_ms: float) -> Refusal | None:
        """None: it waits. A refusal changes nothing. Raises ValueError for a key that is here already."""
        self._check_new(waiting)
        self._now_ms = now_ms
        waiting.work_us = self._estimate.work_us(waiting)
        if refusal := self._entrance.refusal(waiting, self._estimate, now_ms):
            return refusal
        self._arrive(waiting, now_ms)
        return None

    def readmit(self, waiting: Waiting, now_ms: float) -> Refusal | None:
        """A request that was let in before: by its deadline and, where its replica was lost, first of its
        flow within the budget for that; unless no replica can hold it. Raises ValueError for a key that is
        here already."""
        self._check_new(waiting)
        self._now_ms = now_ms
        if refusal := self._entrance.unservable(waiting):
            return refusal
        if waiting.was_lost:
            cost_ms, replicas = self._estimate.prefill_ms(waiting), len(self._placer.rooms)
            waiting.comes_first = self._failovers.take(cost_ms, replicas, now_ms)
        self._arrive(waiting, now_ms)
        return None

    def requeue(self, waiting: Waiting, now_ms: float) -> None:
        """A replica refused it: back to its old place."""
        self._now_ms = now_ms
        self._placer.undone(waiting.key)
        self._backlog.enter(waiting, self._estimate)
        self._queue(waiting).push(waiting)

    def remove(self, key: Hashable) -> Waiting | None:
        """The client left. None: it does not wait."""
        return self._backlog.remove(key)

    def take(self, now_ms: float) -> Placement | None:
        """The next request and its replica; call until None. One that became urgent has another flow."""
        self._now_ms = now_ms
        self._backlog.drop_late(now_ms)
        placement = self._placer.take(now_ms)
        if placement is not None:
            self._backlog.leave(placement.waiting)
            self._entrance.started(placement.waiting, now_ms)
        return placement

    def expired(self, now_ms: float) -> list[Waiting]:
        """Requests whose deadline cannot be met any more; they wait no longer."""
        self._now_ms = now_ms
        self._backlog.drop_late(now_ms)
        return self._backlog.take_late()

    def retry_after_ms(self, expired: Waiting, now_ms: float) -> int:
        """When one that waited in vain may come back, a place booked. 0: nothing can be promised."""
        return self._entrance.told_ms(expired, now_ms)

    def unservable(self) -> list[Waiting]:
        """Requests that no replica can hold any more, since others went; they wait no longer."""
        if not self._most_tokens_fell or not len(self._placer.rooms):
            return []
        self._most_tokens_fell = False
        return self._backlog.remove_longer(self._placer.rooms.most_tokens)

    # -- placed requests ----------------------------------------------------------------------------------

    def adopt(self, waiting: Waiting, replica_key: str, now_ms: float) -> None:
        """A request that a replica runs already, known only from there: placed, and its prompt computed. Tell
        the replica with its rows first. Raises ValueError for a replica nobody told of, or a key that is here
        already."""
        self._check_new(waiting)
        if replica_key not in self._placer.rooms:
            raise ValueError(f"no replica {replica_key!r}")
        self._now_ms = now_ms
        self._sequence += 1
        waiting.sequence = self._sequence
        self._placer.adopt(waiting, replica_key, now_ms)

    def prefilled(self, key: Hashable) -> None:
        """The prompt of a placed request is computed. Unknown keys are ignored."""
        if waiting := self._placer.prefilled(key, self._now_ms):
            self._entrance.done(waiting, self._estimate.prefill_us(waiting))

    def ended(self, key: Hashable, now_ms: float, *, was_cut: bool = False) -> None:
        """A placed request runs no more. `was_cut`: before all its output was produced. Unknown keys are
        ignored."""
        placed = self._placer.ended(key)
        if placed is not None:
            self._entrance.ended(placed, self._estimate, now_ms, was_cut=was_cut)

    def worked(self, replica_key: str, flow: Flow, total_us: int) -> None:
        """Machine time the replica gave to the flow since its start: cumulative, so it may be said twice."""
        self._placer.worked(replica_key, flow, total_us)

    # -- replicas -----------------------------------------------------------------------------------------

    def replicas_set(self, replicas: Sequence[Replica]) -> None:
        """These and no others."""
        for key in self._placer.rooms.keys() - {replica.key for replica in replicas}:
            self.replica_gone(key)
        for replica in replicas:
            self.replica_update(replica)

    def replica_update(self, replica: Replica) -> None:
        if replica.cost is not None:
            self._estimate = WorkEstimate(replica.cost, replica.row_limit or replica.max_rows)
        if not len(self._placer.rooms):  # until now there was nothing too long
            self._most_tokens_fell = True
        self._placer.replica_update(replica)

    def replica_gone(self, key: str) -> list[Waiting]:
        """What was placed there; nothing more is known of it. Prompts that it had not computed are charged to
        nobody. Unknown keys are ignored."""
        if key not in self._placer.rooms:
            return []
        self._most_tokens_fell = True
        return self._placer.replica_gone(key)

    # -- prefixes -----------------------------------------------------------------------------------------

    @property
    def prefixes(self) -> PrefixHolders:
        """Who holds which beginnings of prompts: to be told what replicas report."""
        return self._placer.rooms.prefixes

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> list[LevelChange]:
        """To be called at least every 250 ms."""
        self._now_ms = now_ms
        elapsed_ms = now_ms - self._ticked_ms
        if elapsed_ms <= 0:
            return []
        self._ticked_ms = now_ms
        self._entrance.drain_tick(now_ms, is_bounded=self._estimate.cost is not None)
        self._backlog.hurry(now_ms)
        for queue in self._queues:
            queue.tick(now_ms, elapsed_ms, self.drain_rate)
        self._placer.divide(now_ms)
        change = self._entrance.tick(now_ms)
        self._placer.level = self.level
        self._placer.changed()
        return [change] if change else []

    def over_share(self) -> frozenset[Flow]:
        """Flows whose rows yield in a replica's step to other interactive ones. Batch yields anyway."""
        return frozenset(flow for flow, state in self._interactive.flows.items() if state.is_over)

    # -- across processes ---------------------------------------------------------------------------------

    def leads(self) -> dict[Flow, int]:
        """What fairness needs to go on in another process: of each flow, microseconds of virtual time beyond
        the least served one of its queue."""
        return self._interactive.leads() | self._batch.leads()

    def resume(self, leads: Mapping[Flow, int]) -> None:
        """Of a new one: `leads` of its predecessor."""
        for queue in self._queues:
            own = {flow: lead for flow, lead in leads.items() if self._placer.queue(flow) is queue}
            queue.resume(own, self._now_ms + RESUME_MS)

    # -- views --------------------------------------------------------------------------------------------

    def depth(self, klass: str) -> int:
        return views.depth(views.flows_of(self._queues, klass))

    def oldest_ms(self, klass: str) -> float:
        """How long the one that waits longest has waited, as of the latest call that said the time."""
        return views.oldest_ms(views.flows_of(self._queues, klass), self._now_ms)

    def tenants(self) -> int:
        """Tenants with requests, waiting or running."""
        return views.tenants(views.all_flows(self._queues))

    def flows(self) -> list[FlowView]:
        """Of every flow with requests, the one with the most queued work first."""
        return views.flow_views(views.all_flows(self._queues))

    @property
    def level(self) -> int:
        """Of degradation, 0 to 5."""
        return self._entrance.guards.level

    @property
    def wait_ms(self) -> float:
        """How long an interactive request is expected to wait: that of the flow in the middle."""
        return self._entrance.guards.wait_ms

    @property
    def drain_rate(self) -> float:
        """Machine seconds of estimated interactive work that leave the queue in a second when it is full."""
        return self._entrance.drain.rate

    # -- inside -------------------------------------------------------------------------------------------

    def _check_new(self, waiting: Waiting) -> None:
        if waiting.key in self._backlog.waiting or waiting.key in self._placer.placed:
            raise ValueError(f"{waiting.key!r} is here already")

    def _queue(self, waiting: Waiting) -> FairQueue:
        return self._placer.queue(waiting.flow)

    def _arrive(self, waiting: Waiting, now_ms: float) -> None:
        self._sequence += 1
        waiting.sequence, waiting.work_us = self._sequence, self._estimate.work_us(waiting)
        self._backlog.enter(waiting, self._estimate)
        self._queue(waiting).arrive(waiting, deadline_ms=waiting.deadline_ms - now_ms)
