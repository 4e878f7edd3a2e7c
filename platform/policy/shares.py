"""Who is served next and who holds more than its share: weighted virtual time, and shares of a capacity.

Virtual time is the Virtual Token Counter of Sheng et al. (OSDI 2024) charged in machine time instead of
tokens. It bounds what two backlogged flows can differ in service, not how long one waits: that takes
`over_share`, decided anew at every step. Pure: flows are any ordered, hashable values; costs are arguments.
"""

from collections.abc import Hashable, Iterable, Mapping
from math import inf
from typing import Any, Generic, Protocol, TypeVar

MAX_LAG_MS = 5_000.0


class Flow(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


F = TypeVar("F", bound=Flow)


class VirtualTime(Generic[F]):
    """Machine time each flow was given, in microseconds divided by its weight; the smallest is served first.

    No flow saves up: one that returns starts at the smallest time of the active flows (when there are none,
    where the last one left), and one that stays active but asks for little lags at most `max_lag_ms` behind
    the furthest. Any cost charged at once should be below that, over the flow's weight.
    """

    def __init__(self, *, max_lag_ms: float = MAX_LAG_MS) -> None:
        self._max_lag = _microseconds(max_lag_ms)
        self._times: dict[F, int] = {}
        self._weights: dict[F, float] = {}  # of active flows
        self._resumed: set[F] = set()  # of these, who counts as active only because `resume` said so
        self._floor = 0  # no flow starts below it; never decreases
        self._furthest = 0
        self._sweep_at = 2  # remembered flows

    def __len__(self) -> int:
        """Flows that are remembered."""
        return len(self._times)

    @property
    def active(self) -> frozenset[F]:
        return frozenset(self._weights)

    def activate(self, flow: F, weight: float = 1.0) -> None:
        """The flow has work. Of an active flow, this only sets the weight."""
        if weight <= 0:
            raise ValueError(f"a weight must be positive, not {weight}")
        if flow not in self._weights:
            self._times[flow] = self.of(flow)
        self._weights[flow] = weight
        self._resumed.discard(flow)

    def deactivate(self, flow: F) -> None:
        """The flow has no more work. What it had beyond the others is remembered until they catch up."""
        if flow not in self._weights:
            return
        if len(self._weights) == 1:  # the others' times no longer say where a new flow starts
            self._floor = self._start()
        self._times[flow] = self.of(flow)
        del self._weights[flow]
        if len(self._times) > self._sweep_at:
            self._sweep()

    def charge(self, flow: F, cost_ms: float) -> None:
        """Machine time an active flow was given."""
        time = self.of(flow) + round(_microseconds(cost_ms) / self._weights[flow])
        self._times[flow] = time
        self._furthest = max(self._furthest, time)

    def of(self, flow: F) -> int:
        """Of an idle flow: what it would start with."""
        least = self._furthest - self._max_lag if flow in self._weights else self._start()
        return max(self._times.get(flow, 0), least)

    def leads(self) -> dict[F, int]:
        """For another one to go on with: of each flow that counts, how far it is beyond the least served
        active one, in microseconds."""
        start, floor = self._start(), min(map(self.of, self._weights), default=self._floor)
        counted = (flow for flow, time in self._times.items() if flow in self._weights or time > start)
        return {flow: max(0, self.of(flow) - floor) for flow in counted}

    def resume(self, leads: Mapping[F, int]) -> None:
        """Of a new one: go on where another one was. These flows count as active until `resumed`, so that it
        does not matter which of them comes first."""
        self._times, self._resumed = dict(leads), set(leads)
        self._weights = dict.fromkeys(leads, 1.0)
        self._furthest = max(leads.values(), default=0)

    def resumed(self) -> None:
        """Who has not come by now is idle."""
        for flow in sorted(self._resumed, key=lambda flow: (-self.of(flow), flow)):  # so that debts are kept
            self.deactivate(flow)
        self._resumed.clear()

    def order(self, flows: Iterable[F]) -> list[F]:
        """Least served first; ties by the flow itself, so that two runs agree."""
        return sorted(flows, key=lambda flow: (self.of(flow), flow))

    def _sweep(self) -> None:
        """Forgets idle flows that the others have caught up with."""
        start = self._start()
        self._times = {
            flow: time for flow, time in self._times.items() if flow in self._weights or time > start
        }
        self._sweep_at = 2 * len(self._times)

    def _start(self) -> int:
        if not self._weights:
            return self._floor
        least = min(map(self._times.__getitem__, self._weights))
        return max(self._floor, least, self._furthest - self._max_lag)


def over_share(
    demands: Mapping[F, int], weights: Mapping[F, float], capacity: float, *, least: float = 0
) -> frozenset[F]:
    """Flows that ask for more than their weight's part of `capacity` among the flows that ask for anything.

    `demands` are units wanted, held ones included (sequences running and waiting), so that one that ends
    changes its own flow's standing at most, and that only at the line itself. `least`: a part is never
    smaller, however many flows there are: who asks for one sequence asks for no more than its share.
    """
    total = sum(weights[flow] for flow, demand in demands.items() if demand > 0)
    return frozenset(
        flow
        for flow, demand in demands.items()
        if demand > least and demand * total > capacity * weights[flow]
    )


def equal_parts(
    demands: Mapping[F, int], weights: Mapping[F, float], capacity: float, *, least: float = 0
) -> dict[F, float]:
    """Every flow's part of `capacity` by weight, of those that ask for anything."""
    total = sum(weights[flow] for flow, demand in demands.items() if demand > 0)
    return {
        flow: max(capacity * weights[flow] / total, least) for flow, demand in demands.items() if demand > 0
    }


def water_filling(demands: Mapping[F, float], weights: Mapping[F, float], capacity: float) -> dict[F, float]:
    """Max-min fair parts of `capacity` by weight: nobody gets more than it asks for, nothing is left over
    while somebody wants more, and who gets less than it asks for gets no less per weight than any other."""
    parts: dict[F, float] = {}
    left, weight_left = capacity, sum(weights[flow] for flow in demands)
    for flow in sorted(demands, key=lambda flow: (demands[flow] / weights[flow], flow)):
        parts[flow] = min(float(demands[flow]), left * weights[flow] / weight_left)
        left -= parts[flow]
        weight_left -= weights[flow]
    return parts


def water_level(wanted: Iterable[tuple[float, float]], capacity: float) -> float:
    """What a weight of one gets in the max-min fair division: the flow gets `min(demand, weight · level)`.

    `wanted`: demand and weight of each flow. Infinite when everybody gets what it asks for.
    """
    steps = sorted((demand / weight, demand, weight) for demand, weight in wanted)
    left, weight_left = capacity, sum(weight for _, _, weight in steps)
    for level, demand, weight in steps:
        if level * weight_left > left:
            return left / weight_left
        left -= demand
        weight_left -= weight
    return inf


def _microseconds(duration_ms: float) -> int:
    return round(duration_ms * 1000)
