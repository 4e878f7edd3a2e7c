"""Waiting rows by flow, and whose turn it is: a flow is one tenant's rows of one class.

Machine time decides: the flow that has had least is next (virtual time counters, `policy.shares`). A flow
that asks for more rows than its equal share is over-share: its rows yield to all others. Batch always is.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, KeysView

from gpuworker.engine.sequence import BATCH, Flow, Sequence
from policy.shares import VirtualTime, over_share


class Flows:
    def __init__(self) -> None:
        self._time: VirtualTime[Flow] = VirtualTime()
        self._waiting: dict[Flow, deque[Sequence]] = {}
        self._rows: Counter[Flow] = Counter()  # that have not ended
        self._held: Counter[Flow] = Counter()
        self._weights: dict[Flow, float] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enter(self, sequence: Sequence) -> None:
        flow = sequence.flow
        self._weights[flow] = sequence.weight
        if not self._rows[flow]:
            self._time.activate(flow, sequence.weight)
        self._rows[flow] += 1
        self._waiting.setdefault(flow, deque()).append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It ended, and is in no queue any more."""
        flow = sequence.flow
        self._rows[flow] -= 1
        if sequence.held:
            self._held[flow] -= 1
        if not self._rows[flow]:
            del self._rows[flow], self._weights[flow]
            self._held.pop(flow, None)
            self._waiting.pop(flow, None)
            self._time.deactivate(flow)

    def hold(self, sequence: Sequence, held: bool) -> None:
        if sequence.held != held:
            sequence.held = held
            self._held[sequence.flow] += 1 if held else -1

    def put_first(self, sequence: Sequence) -> None:
        self._waiting[sequence.flow].appendleft(sequence)

    def take(self, sequence: Sequence) -> None:
        self._waiting[sequence.flow].remove(sequence)

    def head(self, flow: Flow) -> Sequence | None:
        """The first of the flow that may run."""
        return next((sequence for sequence in self._waiting.get(flow, ()) if sequence.is_due), None)

    def charge(self, flow: Flow, cost_ms: float) -> None:
        self._time.charge(flow, cost_ms)

    def time(self, flow: Flow) -> int:
        return self._time.of(flow)

    def over(self, capacity: int) -> frozenset[Flow]:
        """Flows whose rows yield, when `capacity` rows can run at the target latency. None do where there is
        nobody to yield to: pausing them would only cost them time."""
        demands = {flow: rows - self._held[flow] for flow, rows in self._rows.items()}
        interactive = {flow: demand for flow, demand in demands.items() if flow.klass != BATCH}
        weights = {flow: self._weights[flow] for flow in interactive}
        over = over_share(interactive, weights, capacity)
        if over == interactive.keys():
            over = frozenset()
        batch = demands.keys() - interactive.keys()
        return over | batch if interactive else over

    def first(self, flows: Collection[Flow]) -> Flow:
        """Whose turn it is: streams that were interrupted go on before others begin."""
        return min(flows, key=lambda flow: (not self._resumes(flow), self._time.of(flow), flow))

    def _resumes(self, flow: Flow) -> bool:
        head = self.head(flow)
        return head is not None and head.preemptions > 0

    def keys(self) -> KeysView[Flow]:
        """Flows with rows that have not ended."""
        return self._rows.keys()

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._rows)
