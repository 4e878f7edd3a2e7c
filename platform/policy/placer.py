"""The next request and its replica: precedence, turns, shares, room; and what machine time flows are charged.

Owns what waits in turn and what was placed. Knows no deadlines: the caller takes out what is late.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from random import Random

from policy.batch_floor import BatchFloor
from policy.fair_queue import FairQueue
from policy.flow import BATCH, Flow
from policy.flow_state import FlowState
from policy.machine_time import MachineTime
from policy.placement import Replica
from policy.queue_settings import QueueSettings
from policy.room import IDLE, LANES, LEFT, OWN, SHARE
from policy.rooms import Rooms
from policy.waiting import Placement, Waiting
from policy.work import WorkEstimate

DIVIDE_MS_PER_FLOW = 0.5  # between two divisions, which take a hundredth of that
BATCH_TO_FLOOR, OVER_TO_GUARANTEED = 1, 2  # levels of degradation that are done here


@dataclass(slots=True)
class Placed:
    """`charged_us`: in advance; `is_account`: the replica reports what it does, so that this is set off."""

    waiting: Waiting
    replica: str
    charged_us: int
    is_account: bool
    prefilled_ms: float | None = None  # None: its prompt is not computed

    @property
    def is_prefilled(self) -> bool:
        return self.prefilled_ms is not None


class Placer:
    def __init__(self, settings: QueueSettings, now_ms: float, rng: Random) -> None:
        self._settings = settings
        self.rooms = Rooms(window_tokens=settings.window_tokens, yielding_part=settings.over_part, rng=rng)
        self.interactive = FairQueue(
            ageing=settings.ageing,
            ageing_most_ms=settings.ageing_most_ms,
            flipped=self.rooms.flipped,
            now_ms=now_ms,
            own_part=settings.over_part,
        )
        self.batch = FairQueue(
            ageing=settings.ageing,
            ageing_most_ms=settings.ageing_most_ms,
            flipped=lambda flow, is_over: None,  # batch yields in any case
            now_ms=now_ms,
        )
        self.placed: dict[Hashable, Placed] = {}
        self.level = 0  # of degradation
        self._floor = BatchFloor(settings.batch_part)
        self._machine_time = MachineTime()
        self._divided_ms = now_ms - settings.shares_ms
        self._is_settled = False  # nothing more fits until something changes
        # Of each queue the next in turn, where it finds no room as one within its share, and since when.
        self._firsts: dict[FairQueue, tuple[Hashable, float]] = {}
        self._holder: FairQueue | None = None  # whose first a replica is kept for

    def queue(self, flow: Flow) -> FairQueue:
        return self.batch if flow.klass == BATCH else self.interactive

    # -- replicas -----------------------------------------------------------------------------------------

    def replica_update(self, replica: Replica) -> None:
        if self.rooms.update(replica):
            self._is_settled = False

    def replica_gone(self, key: str) -> list[Waiting]:
        """What was placed there. Prompts that it had not computed are charged to nobody."""
        lost = [placed for placed in self.placed.values() if placed.replica == key]
        for placed in lost:
            (self.ended if placed.is_prefilled else self.undone)(placed.waiting.key)
        self.rooms.gone(key)
        self._machine_time.gone(key)
        return [placed.waiting for placed in lost]

    # -- requests -----------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Something waits that did not, or may run that might not."""
        self._is_settled = False

    def gone(self, key: Hashable) -> None:
        """It does not wait any more. What was kept for it is free, and another is the head of its flow."""
        self._is_settled = False
        for queue, (first, _) in list(self._firsts.items()):
            if first == key:
                self._first_forget(queue)

    def take(self, now_ms: float) -> Placement | None:
        if self._is_settled:
            return None
        # First of all: who comes to a fleet that one flow has filled finds no room until that one yields.
        flows = len(self.interactive.flows) + len(self.batch.flows)
        if now_ms - self._divided_ms >= min(self._settings.shares_ms, DIVIDE_MS_PER_FLOW * flows):
            self.divide(now_ms)
        if not self.rooms.has_room(SHARE):
            return None
        while not self._is_settled:  # once more where room that was kept is free now
            self._is_settled = True
            for queue, lane in self._precedence():
                if placement := self._take_from(queue, lane, now_ms):
                    self._is_settled = False
                    return placement
        return None

    def adopt(self, waiting: Waiting, replica: str, now_ms: float) -> None:
        """It runs there, its prompt is computed, and nothing is charged for what is over."""
        self.placed[waiting.key] = Placed(waiting, replica, 0, is_account=False, prefilled_ms=now_ms)
        self.rooms.adopt(replica, waiting)
        self.queue(waiting.flow).adopt(waiting)
        self._is_settled = False

    def prefilled(self, key: Hashable, now_ms: float) -> Waiting | None:
        """None: that is known, or nobody knows the request."""
        placed = self.placed.get(key)
        if placed is None or placed.is_prefilled:
            return None
        placed.prefilled_ms = now_ms
        self.rooms.prefilled(placed.replica, placed.waiting)
        self._is_settled = False
        return placed.waiting

    def ended(self, key: Hashable) -> Placed | None:
        placed = self.placed.pop(key, None)
        if placed is not None:
            self.rooms.ended(placed.replica, placed.waiting, was_prefilled=placed.is_prefilled)
            self.queue(placed.waiting.flow).stop(placed.waiting)
            self._is_settled = False
        return placed

    def undone(self, key: Hashable) -> None:
        """It did not run after all: what was charged for it is given back."""
        placed = self.ended(key)
        if placed is None:
            return
        flow, back_us = placed.waiting.flow, placed.charged_us
        if placed.is_account:
            back_us = self._machine_time.refund(placed.replica, flow, back_us)
        self._charge(flow, -back_us, placed.waiting.weight)

    def worked(self, replica: str, flow: Flow, total_us: int) -> None:
        if replica in self.rooms and (cost_us := self._machine_time.worked(replica, flow, total_us)):
            state = self.queue(flow).flows.get(flow)
            self._charge(flow, cost_us, state.weight if state else 1.0)

    # -- time ---------------------------------------------------------------------------------------------

    def divide(self, now_ms: float) -> None:
        """The fleet's rows anew among the flows."""
        self._divided_ms = now_ms
        is_guaranteed_only = self.level >= OVER_TO_GUARANTEED
        self.interactive.divide(self.rooms.capacity, is_guaranteed_only=is_guaranteed_only)
        self.batch.divide(self.rooms.capacity)

    # -- inside -------------------------------------------------------------------------------------------

    def _precedence(self) -> Iterator[tuple[FairQueue, int | None]]:
        """Queues, and the lane of all that is in them; None: each flow has its own."""
        if self._floor.is_due and self.batch.depth:
            yield self.batch, SHARE
        if self.interactive.depth:
            yield self.interactive, None
        if self.batch.depth:
            yield self.batch, IDLE if self.level >= BATCH_TO_FLOOR else LEFT

    def _take_from(self, queue: FairQueue, lane: int | None, now_ms: float) -> Placement | None:
        is_first, known = True, self._firsts.get(queue)
        for state in queue.turns(self.rooms.open_lanes() if lane is None else LANES):
            head = state.waiting.head()
            assert head is not None
            own_lane = state.lane if lane is None else lane
            may_hold = is_first and own_lane in (SHARE, OWN)  # who yields keeps no room from the others
            if is_first and known is not None and not (may_hold and known[0] == head.key):
                self._first_forget(queue)
            key = self.rooms.choose(
                head,
                own_lane,
                now_ms,
                may_use_held=may_hold and self._holder is queue,
                own_part=self._part_here(queue, state) if lane is None and state.is_over else 1.0,
            )
            if key is not None:
                return self._place(queue, head, key, now_ms)
            if may_hold:
                self._keep_room(queue, head, now_ms)
            is_first = False
        if is_first and known is not None:
            self._first_forget(queue)
        return None

    def _part_here(self, queue: FairQueue, state: FlowState) -> float:
        """Of one replica's rows, for an over-share flow: the same as of all replicas'. Where the others leave
        much over, who came first would have all of it for as long as its rows last."""
        return self._settings.over_part * queue.level * state.weight / max(queue.capacity, 1.0)

    def _keep_room(self, queue: FairQueue, head: Waiting, now_ms: float) -> None:
        """The next in turn finds no room: it is not to be overtaken for ever by those that need less."""
        _, since_ms = self._firsts.setdefault(queue, (head.key, now_ms))
        if self.rooms.held is None and now_ms - since_ms >= self._settings.hold_ms:
            self.rooms.hold_for(head)
            self._holder = queue

    def _first_forget(self, queue: FairQueue) -> None:
        """It is not its turn any more."""
        del self._firsts[queue]
        if self._holder is queue:
            self._holder, self.rooms.held = None, None
            self._is_settled = False  # what was passed over for it may begin

    def _place(self, queue: FairQueue, head: Waiting, key: str, now_ms: float) -> Placement:
        replica = self.rooms[key].replica
        queue.start(head)
        self.gone(head.key)
        if head.chains:  # what is held there, not on the one that holds most
            prefixes = self.rooms.prefixes
            head.cached_tokens = int(prefixes.hits(head.chains, now_ms).get(key, 0))
            prefixes.placed(key, head.chains, now_ms)
        self.rooms.place(key, head)
        estimate = WorkEstimate(replica.cost, replica.row_limit)
        cost_us = round(1000 * estimate.prefill_ms(head))
        is_account = replica.cost is not None
        if is_account:
            self._machine_time.prepay(key, head.flow, cost_us)
        else:  # it will not tell what it does
            cost_us += round(1000 * estimate.decode_ms(head))
        self.placed[head.key] = Placed(head, key, cost_us, is_account)
        self._charge(head.flow, cost_us, head.weight)
        return Placement(head, key)

    def _charge(self, flow: Flow, cost_us: int, weight: float) -> None:
        queue = self.queue(flow)
        queue.charge(flow, cost_us, weight)
        was_due = self._floor.is_due
        is_batch = queue is self.batch
        self._floor.worked(cost_us, len(self.rooms), is_batch=is_batch, is_wanted=bool(self.batch.flows))
        if self._floor.is_due != was_due:
            self._is_settled = False
