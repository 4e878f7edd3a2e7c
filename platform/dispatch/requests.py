"""A submitted request until it ends, and what the queue of its model version is told of it."""

import math
from dataclasses import dataclass

from dispatch.limits import Limits
from gpuworker.wire.messages import RowFlow, RowKey, Submit
from policy.flow import BATCH_URGENT, CLASSES, INTERACTIVE, Flow
from policy.waiting import Waiting


@dataclass(slots=True, eq=False)
class Request:
    """`worker` is the incarnation it was placed on. `waiting` is kept while it is placed, so that a request
    that a worker refuses has its old place; None, like `submit`: learnt from a worker that already ran it."""

    row: RowKey
    submit: Submit | None
    arrived_ms: float
    deadline_ms: float
    start_by_ms: float = math.inf
    waiting: Waiting | None = None
    worker: str = ""
    prefilled: bool = False
    adopted_choices: int = 1  # of one without a submit, as its worker says
    cancel_reason: str = ""  # its gateway does not want it any more; the worker was told
    misrouted: int = 0  # workers that held something else, or were another process

    @property
    def prompt_tokens(self) -> int:
        return len(self.submit.prompt) // 4 if self.submit else 0

    @property
    def choices(self) -> int:
        """Rows it takes on a worker."""
        return max(1, self.submit.n) if self.submit else self.adopted_choices


def request_make(row: RowKey, submit: Submit, limits: Limits, now_ms: float) -> Request:
    """Ages and deadlines that a gateway states are bounded. The time it has waited comes with it."""
    waited_ms = min(max(submit.waited_ms, 0), limits.max_wait_ms)
    left_ms = min(submit.deadline_ms, limits.max_wait_ms)
    start_by_ms = now_ms + (min(submit.start_ms, left_ms) if submit.start_ms > 0 else left_ms)
    return Request(row, submit, now_ms - waited_ms, now_ms + left_ms, start_by_ms)


def waiting_make(request: Request, submit: Submit) -> Waiting:
    """Its key is the request itself: the number of a row may stand for another attempt by then."""
    most_tokens = max(0, submit.max_tokens) * request.choices
    return Waiting(
        key=request,
        flow=Flow(submit.tenant, submit.klass if submit.klass in CLASSES else INTERACTIVE),
        weight=_weight(submit.weight),
        arrived_ms=request.arrived_ms,
        deadline_ms=request.start_by_ms,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=0,
        expected_tokens=min(submit.expected_tokens, most_tokens)
        if submit.expected_tokens > 0
        else most_tokens,
        choices=request.choices,
        is_retry=submit.retries > 0 if submit.retries >= 0 else None,
        whole_by_ms=request.deadline_ms if submit.is_whole else math.inf,
        was_lost=submit.moves > 0,
    )


def adopted_make(request: Request, row: RowFlow, now_ms: float) -> Waiting:
    """A row that a worker already ran, as its queue counts it: nothing is left to decide, its cost is not
    known. Workers run batch that became urgent as a class of its own."""
    return Waiting(
        key=request,
        flow=Flow(row.tenant, row.klass if row.klass in (*CLASSES, BATCH_URGENT) else INTERACTIVE),
        weight=_weight(row.weight),
        arrived_ms=now_ms,
        deadline_ms=math.inf,
        prompt_tokens=0,
        cached_tokens=0,
        expected_tokens=0,
        choices=request.choices,
    )


def _weight(said: float) -> float:
    return said if said > 0 and math.isfinite(said) else 1.0
