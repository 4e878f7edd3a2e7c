"""Waiting requests of one model version and class, in order of arrival, with removal in O(log n)."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuworker.wire.messages import RowKey, Submit

INTERACTIVE = "interactive"
BATCH = "batch"
CLASSES = (INTERACTIVE, BATCH)  # in order of precedence


@dataclass(slots=True, eq=False)
class Request:
    """A submitted request until it ends. `worker` is the incarnation it was placed on.

    `sequence` breaks ties of arrival and is kept when the request returns to its queue.
    """

    row: RowKey
    submit: Submit | None  # None: learnt from a worker that already ran it
    klass: str
    arrived_ms: float
    deadline_ms: float
    worker: str = ""
    prefilled: bool = False
    sequence: int = 0
    adopted_choices: int = 1  # of one without a submit, as its worker says
    cancel_reason: str = ""  # its gateway does not want it any more; the worker was told

    @property
    def prompt_tokens(self) -> int:
        return len(self.submit.prompt) // 4 if self.submit else 0

    @property
    def choices(self) -> int:
        """Rows it takes on a worker."""
        return max(1, self.submit.n) if self.submit else self.adopted_choices


@dataclass(slots=True)
class Queue:
    """Arrival order survives a resubmission: the time a request has waited comes with it."""

    _order: list[tuple[float, int, RowKey]] = field(default_factory=list)
    _waiting: dict[RowKey, Request] = field(default_factory=dict)
    _sequence: int = 0

    def oldest_ms(self, now_ms: float) -> int:
        """How long the head has waited; 0 when empty."""
        head = self.head()
        return int(now_ms - head.arrived_ms) if head else 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())

    def push(self, request: Request) -> None:
        if request.sequence == 0:
            self._sequence += 1
            request.sequence = self._sequence
        self._waiting[request.row] = request
        heapq.heappush(self._order, (request.arrived_ms, request.sequence, request.row))

    def head(self) -> Request | None:
        while self._order:
            arrived_ms, _, row = self._order[0]
            request = self._waiting.get(row)
            if request is not None and request.arrived_ms == arrived_ms:
                return request
            heapq.heappop(self._order)  # removed or pushed again since
        return None

    def remove(self, row: RowKey) -> Request | None:
        request = self._waiting.pop(row, None)
        if not self._waiting:
            self._order.clear()
        return request
