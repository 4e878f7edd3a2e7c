"""A flow with requests that wait or run, as its fair queue counts it."""

from math import inf

from policy.flow import Flow
from policy.removable_heap import RemovableHeap
from policy.room import SHARE
from policy.waiting import Waiting

Turn = tuple[float, Flow]


class FlowState:
    """A flow with requests that wait or run."""

    __slots__ = (
        "arrival_rate",
        "arrived_us",
        "deadline_ms",
        "flow",
        "has_waited_long",
        "is_over",
        "lane",
        "queued_rows",
        "queued_tokens",
        "queued_us",
        "running_rows",
        "turn",
        "waiting",
        "weight",
        "work_rate",
        "worked_us",
    )

    def __init__(self, flow: Flow, weight: float) -> None:
        self.flow, self.weight = flow, weight
        self.deadline_ms = inf  # how long its latest request may take
        self.waiting: RemovableHeap[Waiting] = RemovableHeap()
        self.queued_rows = self.running_rows = 0
        self.queued_us = self.queued_tokens = 0  # work and prompt tokens that wait
        self.is_over = False
        self.has_waited_long = False  # since something of it waits
        self.lane = SHARE
        self.turn: Turn | None = None  # where it stands in its lane; None: nothing of it waits
        self.arrived_us = self.worked_us = 0  # since the last tick
        self.arrival_rate = self.work_rate = 0.0  # machine seconds a second

    @property
    def demand(self) -> int:
        return self.queued_rows + self.running_rows
