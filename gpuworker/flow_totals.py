"""Machine time of each flow since the worker's start, and which of it the dispatcher was not told yet.

Totals, not differences: a report that is lost with its connection costs nothing. Called from the event loop.
"""

from collections.abc import Iterable
from itertools import islice

from gpuworker.engine.machine_time import Work
from gpuworker.wire.messages import FlowWork
from policy.flow import Flow

MAX_FLOWS = 1024
EVERY_MS = 100.0  # between two reports of it; also as machine time, when a report is due for it


class FlowTotals:
    """`max_flows` are remembered once their time was told; whose time was not told is never forgotten."""

    def __init__(self, max_flows: int = MAX_FLOWS) -> None:
        self._max_flows = max_flows
        self._told_us: dict[Flow, int] = {}  # totals as told; who was served longest ago comes first
        self._untold_us: dict[Flow, int] = {}  # since then
        self._told_ms = -EVERY_MS

    def __len__(self) -> int:
        """Flows that are remembered."""
        return len(self._told_us.keys() | self._untold_us.keys())

    def add(self, work: Iterable[Work]) -> None:
        untold_us = self._untold_us
        for flow, us in work:
            untold_us[flow] = untold_us.get(flow, 0) + us

    @property
    def is_due(self) -> bool:
        return sum(self._untold_us.values()) >= EVERY_MS * 1000

    def take(self, now_ms: float, *, everything: bool) -> list[FlowWork]:
        """Totals of flows that changed since they were last told, or of all. Nothing within EVERY_MS of the
        last time. A flow that is forgotten is told with 0: should it come again, it begins there."""
        if now_ms - self._told_ms < EVERY_MS and not everything:
            return []
        totals_us, worked_us = self._told_us, self._untold_us
        self._untold_us, self._told_ms = {}, now_ms
        for flow, us in worked_us.items():
            totals_us[flow] = totals_us.pop(flow, 0) + us
        if everything:
            return [FlowWork(*flow, total_us) for flow, total_us in totals_us.items()]
        too_many = max(len(totals_us) - self._max_flows, 0)
        forgotten = [flow for flow in islice(totals_us, too_many) if flow not in worked_us]
        for flow in forgotten:
            del totals_us[flow]
        changed = [FlowWork(*flow, totals_us[flow]) for flow in worked_us]
        return changed + [FlowWork(*flow, 0) for flow in forgotten]
