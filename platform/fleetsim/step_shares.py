"""Whose rows yield at a replica's next step: the rules of the worker's `engine/flows`, on lanes.

A flow beyond its share yields to those within, batch yields to all; who has had so much less machine time
than all the others does not yield any more, until it has caught up.
"""

from collections.abc import Collection

from fleetsim.rows import BATCH, Lane
from policy.batch_floor import BATCH_PART, BatchFloor
from policy.flow import Flow
from policy.shares import VirtualTime, equal_parts, over_share

BATCH_WEIGHT = 0.1  # of an interactive flow's: what batch gets when it has to be given something
MAX_BEHIND_US = 1_000_000  # a flow yields until all others had so much more machine time
NOBODY: frozenset[Flow] = frozenset()


def lane_weight(flow: Flow, weight: float) -> float:
    return weight * (BATCH_WEIGHT if flow.klass == BATCH else 1)


class StepShares:
    """`over`: flows whose rows yield. `parts`: rows that each flow may run whatever the others want."""

    def __init__(self, *, pausing: bool) -> None:
        self._time: VirtualTime[Flow] = VirtualTime()
        self.floor = BatchFloor(BATCH_PART)
        self._owed_ms: dict[Flow, float] = {}  # charged when somebody asks for times
        self.over: frozenset[Flow] = NOBODY
        self.parts: dict[Flow, float] = {}
        self.capacity = 0  # rows of interactive flows: batch's floor has room beside them
        self.batch_rows = 0  # while fewer of batch decode, it may enter whatever the others want
        self.pushed = NOBODY  # over-share in the whole fleet, as the dispatcher said
        self._total_us: dict[Flow, int] = {}
        self._pausing = pausing
        self._known: tuple[int, int] = (-1, 0)
        self._beyond: frozenset[Flow] = NOBODY  # before those that catch up are left out
        self._batch: frozenset[Flow] = NOBODY
        self._catching_up: set[Flow] = set()

    def over_set(self, over: frozenset[Flow]) -> None:
        if over != self.pushed:
            self.pushed, self._known = over, (-1, 0)

    def activate(self, flow: Flow, weight: float) -> None:
        self._settle()
        self._time.activate(flow, weight)

    def deactivate(self, flow: Flow) -> None:
        self._settle()
        self._time.deactivate(flow)

    def charge(self, flow: Flow, cost_ms: float) -> None:
        self._owed_ms[flow] = self._owed_ms.get(flow, 0.0) + cost_ms

    def time(self, flow: Flow) -> int:
        if self._owed_ms:
            self._settle()
        return self._time.of(flow)

    @property
    def total_us(self) -> dict[Flow, int]:
        """Machine time of every flow since the start."""
        self._settle()
        return self._total_us

    def _settle(self) -> None:
        for flow, cost_ms in self._owed_ms.items():
            self._time.charge(flow, cost_ms)
            cost_us = round(cost_ms * 1000)
            self._total_us[flow] = self._total_us.get(flow, 0) + cost_us
        self._owed_ms.clear()

    def stepped(self, batch_ms: float, others_ms: float) -> None:
        """A step was planned, of so much time."""
        self.floor.stepped(batch_ms, others_ms, is_wanted=bool(self._batch))

    def update(self, lanes: dict[Flow, Lane], demand_version: int, capacity: int) -> None:
        """`demand_version` changes with any lane's demand; `capacity` is the row limit."""
        if (demand_version, capacity) != self._known:
            self._known = demand_version, capacity
            self._divide(lanes, capacity)
        is_due = bool(self._batch) and self.floor.is_due
        self.batch_rows = 1 + int(2 * BATCH_PART * capacity) if is_due else 0
        yielding = self._beyond | self._batch
        if not yielding:
            self.over, self._catching_up = NOBODY, set()
            return
        within = lanes.keys() - yielding
        sharing = lanes.keys() - self._batch
        starved = self._starved(self._beyond, within) if within else set()
        self._catching_up = starved | self._starved(self._batch, within or sharing)
        self.over = yielding - self._catching_up

    def part(self, flow: Flow) -> float:
        return 1 if flow in self._batch and flow in self._catching_up else self.parts.get(flow, 0)

    def is_last(self, flow: Flow) -> bool:
        return flow.klass == BATCH and flow not in self._catching_up

    def _divide(self, lanes: dict[Flow, Lane], capacity: int) -> None:
        interactive = {flow: lane.demand for flow, lane in lanes.items() if flow.klass != BATCH}
        sharing = interactive or {flow: lane.demand for flow, lane in lanes.items()}
        self._batch = frozenset(lanes.keys() - sharing.keys())
        wanted_rows = sum(lanes[flow].demand for flow in self._batch)
        capacity -= min(int(BATCH_PART * capacity), wanted_rows)
        self.capacity = capacity
        weights = {flow: lanes[flow].weight for flow in sharing}
        self.parts = equal_parts(sharing, weights, capacity, least=1)
        if not self._pausing or len(sharing) == 1:
            self._beyond = NOBODY
        else:
            self._beyond = self.pushed & sharing.keys() or over_share(sharing, weights, capacity, least=1)

    def _starved(self, flows: Collection[Flow], others: Collection[Flow]) -> set[Flow]:
        """Those that had so much less time than all the others; once there, until they have caught up."""
        least_us = min(map(self.time, others), default=0)
        return {
            flow
            for flow in flows
            if least_us - self.time(flow) > (0 if flow in self._catching_up else MAX_BEHIND_US)
        }
