"""Waiting rows by flow, and whose turn it is: a flow is one tenant's rows of one class.

Machine time decides: the flow that has had least is next (virtual time counters, `policy.shares`). A flow
that asks for more rows than its equal share is over-share: its rows yield to all others. So does one that is
over its share in the whole fleet, and batch. Who has yielded for too long has its turn all the same.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, KeysView, Mapping
from typing import NamedTuple

from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.sequence import Sequence
from policy.batch_floor import BATCH_PART, BatchFloor
from policy.flow import BATCH, Flow
from policy.shares import VirtualTime, equal_parts, over_share
from policy.step_turn import Turn

MAX_BEHIND_US = 1_000_000  # a flow yields until all others had so much more machine time
BATCH_WEIGHT = 0.1  # of an interactive flow's: what batch gets when it has to be given something


class Shares(NamedTuple):
    over: frozenset[Flow]  # their rows yield
    parts: dict[Flow, float]  # rows that each flow may run whatever the others want; none: what is left over
    capacity: int = 0  # rows of interactive flows: batch's floor has room beside them
    batch_rows: int = 0  # while fewer of batch decode, it may enter whatever the others want


class Flows:
    """`over_in_fleet`: flows over their share in the whole fleet, with rows here or not."""

    def __init__(self) -> None:
        self.over_in_fleet: frozenset[Flow] = frozenset()
        self.floor = BatchFloor(BATCH_PART)
        self._time: VirtualTime[Flow] = VirtualTime()
        self._waiting: dict[Flow, OrderedDict[SequenceKey, Sequence]] = {}
        self._prompts: dict[SequenceKey, int] = {}  # tokens that waiting rows have to compute
        self.waiting_prefill_tokens = 0
        self._rows: Counter[Flow] = Counter()  # that have not ended
        self._held: Counter[Flow] = Counter()
        self._weights: dict[Flow, float] = {}
        self._wants_batch = False
        self._catching_up: set[Flow] = set()  # beyond their share, but left out for long

    @property
    def waiting(self) -> int:
        return len(self._prompts)

    def enter(self, sequence: Sequence) -> None:
        flow = sequence.flow
        self._weights[flow] = sequence.weight * (BATCH_WEIGHT if flow.klass == BATCH else 1)
        self._time.activate(flow, self._weights[flow])
        self._rows[flow] += 1
        self._put(sequence)

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
        self._put(sequence)
        self._waiting[sequence.flow].move_to_end(sequence.key, last=False)

    def take(self, sequence: Sequence) -> None:
        del self._waiting[sequence.flow][sequence.key]
        self.waiting_prefill_tokens -= self._prompts.pop(sequence.key)

    def _put(self, sequence: Sequence) -> None:
        self._waiting.setdefault(sequence.flow, OrderedDict())[sequence.key] = sequence
        self._prompts[sequence.key] = sequence.prefill_tokens
        self.waiting_prefill_tokens += sequence.prefill_tokens

    def head(self, flow: Flow) -> Sequence | None:
        """The first of the flow that may run."""
        waiting = self._waiting.get(flow)
        return next((sequence for sequence in waiting.values() if sequence.is_due), None) if waiting else None

    def charge(self, flow: Flow, cost_ms: float) -> None:
        self._time.charge(flow, cost_ms)

    def stepped(self, costs: Mapping[Flow, float], base_ms: float) -> None:
        """A step was planned: the milliseconds of each flow's rows, and what it costs in common."""
        rows_ms = sum(costs.values())
        if rows_ms <= 0:
            return
        batch_ms = sum(cost_ms for flow, cost_ms in costs.items() if flow.klass == BATCH)
        whole = 1 + base_ms / rows_ms
        self.floor.stepped(whole * batch_ms, whole * (rows_ms - batch_ms), is_wanted=self._wants_batch)

    def time(self, flow: Flow) -> int:
        return self._time.of(flow)

    def shares(self, capacity: int) -> Shares:
        """When `capacity` rows can run at the target latency. A lone flow yields to nobody: pausing it would
        only cost it time. Nor does one that has yielded too long. Where the fleet's over-share flows have
        rows, only they yield: who has more than its part just here, by how requests were placed, is within
        its share. Batch yields to all; its floor is capacity that the others do not have while it wants it,
        and when it is owed time, rows of it enter and run whatever they want."""
        held = self._held
        demands = {flow: rows - held[flow] for flow, rows in self._rows.items() if rows > held[flow]}
        interactive = {flow: demand for flow, demand in demands.items() if flow.klass != BATCH}
        sharing = interactive or demands
        batch = demands.keys() - sharing.keys()
        self._wants_batch = bool(batch)
        floor_rows = min(int(BATCH_PART * capacity), sum(demands[flow] for flow in batch))
        batch_rows = 1 + int(2 * BATCH_PART * capacity) if batch and self.floor.is_due else 0
        capacity -= floor_rows
        weights = {flow: self._weights[flow] for flow in sharing}
        parts = equal_parts(sharing, weights, capacity, least=1)
        over: frozenset[Flow] = frozenset()
        if len(sharing) > 1:
            over = self.over_in_fleet & sharing.keys() or over_share(sharing, weights, capacity, least=1)
        within = sharing.keys() - over
        starved = self._starved(over, within) if within else set()
        self._catching_up = starved | self._starved(batch, within or sharing.keys())
        parts |= dict.fromkeys(self._catching_up & batch, 1)
        return Shares((over | batch) - self._catching_up, parts, capacity, batch_rows)

    def _starved(self, flows: Collection[Flow], others: Collection[Flow]) -> set[Flow]:
        """Those that had so much less time than all the others; once there, until they have caught up."""
        least_us = min(map(self.time, others), default=0)
        return {
            flow
            for flow in flows
            if least_us - self.time(flow) > (0 if flow in self._catching_up else MAX_BEHIND_US)
        }

    def turn(self, flow: Flow, *, overtakes: bool) -> Turn:
        """When it is this flow's turn. Changes with what it is charged and with its head. Of streams that
        were interrupted the least served goes on first, however little another one needs."""
        head = self.head(flow)
        begins = head is None or not head.preemptions
        is_last = flow.klass == BATCH and flow not in self._catching_up
        return Turn(is_last, begins, begins and not overtakes, self._time.of(flow), flow)

    def keys(self) -> KeysView[Flow]:
        """Flows with rows that have not ended."""
        return self._rows.keys()

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._rows)
