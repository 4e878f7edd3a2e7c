"""Waiting requests by flow, and whose turn it is: the flow that was given least machine time is next.

Within a flow the earliest deadline is first, after what was interrupted. A flow that asks for more rows than
its weight's part of the fleet is over its share. One of these queues holds one precedence: interactive
requests, or batch.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping
from math import exp, inf

from policy.flow import Flow
from policy.flow_state import FlowState, Turn
from policy.room import IDLE, LANES, MORE, OWN, SHARE
from policy.shares import VirtualTime, water_level
from policy.waiting import Waiting

RATE_MEMORY_MS = 5_000.0
LONG_WAIT_MS = 1_000.0  # who waits for so long asks for more than its share


class FairQueue:
    """`flipped` hears of every flow that is over its share from now on, or not any more. `own_part`: of its
    share of the rows, that a flow may have at once though it asks for more."""

    def __init__(
        self,
        *,
        ageing: float,
        ageing_most_ms: float,
        flipped: Callable[[Flow, bool], None],
        now_ms: float,
        own_part: float = 0.0,
    ) -> None:
        self._own_part = own_part
        self._ageing, self._ageing_most_ms, self._flipped = ageing, ageing_most_ms, flipped
        self._time: VirtualTime[Flow] = VirtualTime()
        self.flows: dict[Flow, FlowState] = {}
        # Flows with something that waits, by turn: many in all of them, and most moments have room for few.
        self._lanes: tuple[list[Turn], ...] = tuple([] for _ in LANES)
        self._is_guaranteed_only = False
        self.capacity = 0.0  # rows
        self.level = inf  # rows of a weight of one in the max-min division
        self.weight = 0.0  # of all flows
        self.queued_weight = 0.0  # of flows with something that waits
        self.depth = self.queued_us = self.queued_tokens = 0
        self.light_rate = 0.0  # machine seconds a second that come for flows of which nothing waits
        self._arrived_us = 0
        self._arrival_rate = 0.0
        self._aged_per_ms = 0.0  # virtual microseconds that a millisecond of waiting is worth
        self._now_ms = now_ms  # of the last tick: waiting counts up to there
        self._resumed_ms = inf  # when flows of a predecessor had time enough to come

    # -- requests -----------------------------------------------------------------------------------------

    def arrive(self, waiting: Waiting, *, deadline_ms: float) -> None:
        """A new request. `deadline_ms`: how long it may take, from now."""
        self.push(waiting)
        state = self.flows[waiting.flow]
        state.deadline_ms = deadline_ms
        state.arrived_us += waiting.work_us
        self._arrived_us += waiting.work_us

    def push(self, waiting: Waiting) -> None:
        """It waits, at the place that its deadline gives it."""
        state = self.flows.get(waiting.flow)
        if state is None:
            state = self._open(waiting)
        elif state.weight != waiting.weight:
            self.weight += waiting.weight - state.weight
            if state.waiting:
                self.queued_weight += waiting.weight - state.weight
            state.weight = waiting.weight
        self._time.activate(waiting.flow, waiting.weight)
        if not state.waiting:
            self.queued_weight += state.weight
        due_ms = -inf if waiting.comes_first else waiting.deadline_ms
        rank = (due_ms, waiting.arrived_ms, waiting.sequence)
        state.waiting.push(rank, waiting.key, waiting)
        self._count(state, waiting, 1)
        self._touch(state)

    def remove(self, waiting: Waiting) -> None:
        """It waits no more."""
        state = self.flows[waiting.flow]
        self._unqueue(state, waiting)
        self._settle(state)

    def start(self, waiting: Waiting) -> None:
        """It runs."""
        state = self.flows[waiting.flow]
        self._unqueue(state, waiting)
        state.running_rows += waiting.choices
        self._touch(state)

    def adopt(self, waiting: Waiting) -> None:
        """It runs already and never waited here. What the flow's own requests say of its weight is newer."""
        state = self.flows.get(waiting.flow)
        if state is None:
            state = self._open(waiting)
            self._time.activate(waiting.flow, waiting.weight)
        state.running_rows += waiting.choices
        self._touch(state)

    def stop(self, waiting: Waiting) -> None:
        """It runs no more."""
        state = self.flows[waiting.flow]
        state.running_rows -= waiting.choices
        self._settle(state)

    def charge(self, flow: Flow, cost_us: int, weight: float) -> None:
        """Machine time. A flow that has left meanwhile remembers it. Negative: given back."""
        state = self.flows.get(flow)
        if state is None:
            self._time.activate(flow, weight)
            self._time.charge(flow, cost_us / 1000)
            self._time.deactivate(flow)
            return
        self._time.charge(flow, cost_us / 1000)
        state.worked_us += cost_us
        if state.turn is not None:
            self._reorder(state)

    # -- turns --------------------------------------------------------------------------------------------

    def turns(self, lanes: Collection[int] = LANES) -> Iterator[FlowState]:
        """Flows of these lanes with something that waits, the one whose turn it is first. Of those with rows
        of their own the first is among them in any case: it may need that room is kept for it."""
        orders = [self._lanes[lane] for lane in lanes]
        if OWN not in lanes:
            orders.append(self._lanes[OWN][:1])
        orders = [order for order in orders if order]
        turns = heapq.merge(*orders) if len(orders) > 1 else iter(orders[0]) if orders else iter(())
        return (self.flows[flow] for _, flow in turns)

    def part(self, state: FlowState) -> float:
        """Rows that are the flow's by weight."""
        return self.capacity * state.weight / self.weight

    def _own_rows(self, state: FlowState) -> float:
        """Rows that the flow may have at once though it asks for more: at least one, if that is its part."""
        part = self.part(state)
        return max(self._own_part * part, min(part, 1.0)) if self._own_part else 0.0

    def _is_at_limit(self, state: FlowState, choices: int) -> bool:
        """An over-share flow leaves a part of its max-min share free, so that others find room at once."""
        if not state.running_rows:
            return False
        most = self._own_part * self.level * state.weight
        if self._is_guaranteed_only:
            most = min(most, self.part(state))
        # Up to a row more: with parts of a row and a half, half the fleet would stand idle otherwise.
        return state.running_rows + choices - 1 >= most

    def _lane(self, state: FlowState, choices: int) -> int:
        """Of a flow whose next request has so many choices."""
        if not state.is_over:
            return SHARE
        # Without such rows, who comes to a full fleet with a backlog would wait for those of who came before.
        if state.running_rows + 1 <= self._own_rows(state):
            return OWN
        return IDLE if self._is_at_limit(state, choices) else MORE

    # -- time ---------------------------------------------------------------------------------------------

    def divide(self, capacity: float, *, is_guaranteed_only: bool = False) -> None:
        """The fleet's rows anew among the flows: who is over its share, and how much a weight may hold.
        `is_guaranteed_only`: nobody more than its part by weight."""
        self.capacity, self._is_guaranteed_only = capacity, is_guaranteed_only
        self.weight = sum(state.weight for state in self.flows.values())
        self.queued_weight = sum(state.weight for state in self.flows.values() if state.waiting)
        self.level = water_level(
            ((state.demand, state.weight) for state in self.flows.values()), self.capacity
        )
        for state in self.flows.values():
            self._mark(state)
            self._reorder(state)

    def tick(self, now_ms: float, elapsed_ms: float, drain_rate: float) -> None:
        """`drain_rate`: machine seconds a second that all flows are given together."""
        factor = 1 - exp(-elapsed_ms / RATE_MEMORY_MS)
        for state in self.flows.values():
            state.arrival_rate += factor * (state.arrived_us / 1000 / elapsed_ms - state.arrival_rate)
            state.work_rate += factor * (state.worked_us / 1000 / elapsed_ms - state.work_rate)
            state.arrived_us = state.worked_us = 0
        self._arrival_rate += factor * (self._arrived_us / 1000 / elapsed_ms - self._arrival_rate)
        self._arrived_us = 0
        backlogged = sum(state.arrival_rate for state in self.flows.values() if state.waiting)
        self.light_rate = max(0.0, self._arrival_rate - backlogged)
        self._now_ms = now_ms
        if now_ms >= self._resumed_ms:
            self._time.resumed()
            self._resumed_ms = inf
        # A second of fair service advances every flow's virtual time by the same, whatever its weight.
        self._aged_per_ms = self._ageing * drain_rate * 1000 / self.weight if self.weight else 0.0
        for state in self.flows.values():
            if state.turn is not None:
                self._reorder(state)

    # -- across processes ---------------------------------------------------------------------------------

    def leads(self) -> dict[Flow, int]:
        """Microseconds of virtual time, see `VirtualTime.leads`."""
        return self._time.leads()

    def resume(self, leads: Mapping[Flow, int], until_ms: float) -> None:
        """Of a new one: its predecessor's flows go on where they were, if they come in time."""
        self._time.resume(leads)
        self._resumed_ms = until_ms

    # -- inside -------------------------------------------------------------------------------------------

    def _open(self, waiting: Waiting) -> FlowState:
        """Its flow had nothing here."""
        state = self.flows[waiting.flow] = FlowState(waiting.flow, waiting.weight)
        self.weight += waiting.weight
        return state

    def _unqueue(self, state: FlowState, waiting: Waiting) -> None:
        state.waiting.remove(waiting.key)
        self._count(state, waiting, -1)
        if not state.waiting:
            self.queued_weight -= state.weight

    def _count(self, state: FlowState, waiting: Waiting, sign: int) -> None:
        work_us, tokens = sign * waiting.work_us, sign * waiting.prompt_tokens
        self.depth += sign
        self.queued_us += work_us
        self.queued_tokens += tokens
        state.queued_rows += sign * waiting.choices
        state.queued_us += work_us
        state.queued_tokens += tokens

    def _settle(self, state: FlowState) -> None:
        """After something of it went: it may have nothing left."""
        self._touch(state)
        if state.demand == 0:
            del self.flows[state.flow]
            self.weight -= state.weight
            self._time.deactivate(state.flow)

    def _touch(self, state: FlowState) -> None:
        """Its demand, what waits of it or its machine time changed."""
        self._mark(state)
        self._reorder(state)

    def _mark(self, state: FlowState) -> None:
        """Whether it is over its share."""
        # A lone flow yields to nobody. One row is never more than a share, however many flows there are.
        is_over = (
            len(self.flows) > 1
            and state.demand > 1
            and (self._waits_long(state) or state.demand * self.weight > self.capacity * state.weight)
        )
        if is_over != state.is_over:
            state.is_over = is_over
            self._flipped(state.flow, is_over)

    def _waits_long(self, state: FlowState) -> bool:
        """Flows within their share are served at once. Where that does not happen they ask, all together, for
        more than there is, though each for fewer rows than its part: rows are too coarse a measure where
        prompts take most of the time. Until nothing of it waits."""
        head = state.waiting.head()
        if head is None:
            state.has_waited_long = False
        elif self._now_ms - head.arrived_ms > LONG_WAIT_MS:
            state.has_waited_long = True
        return state.has_waited_long

    def _reorder(self, state: FlowState) -> None:
        head = state.waiting.head()
        if head is None:
            self._leave_order(state)
            return
        time = float(self._time.of(state.flow))
        if not state.is_over:
            # Who asks for more than its part always waits: were that worth something, it would come first.
            waited_ms = min(max(0.0, self._now_ms - head.arrived_ms), self._ageing_most_ms)
            time -= waited_ms * self._aged_per_ms
        turn, lane = (time, state.flow), self._lane(state, head.choices)
        if turn != state.turn or lane != state.lane:
            self._leave_order(state)
            state.turn, state.lane = turn, lane
            insort(self._lanes[lane], turn)

    def _leave_order(self, state: FlowState) -> None:
        if state.turn is not None:
            order = self._lanes[state.lane]
            del order[bisect_left(order, state.turn)]
            state.turn = None
