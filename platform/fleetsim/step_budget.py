"""What is left of a step's time while it is composed: the rules of the worker's `engine/budget`."""

from fleetsim.replica_model import ReplicaModel
from fleetsim.rows import Lane, Row

PAUSE_US = 250_000  # a row that was left out for this long is overdue
YIELDING_FLOOR = 0.1  # of the time that the decodes of over-share flows would take, kept from prompts


class StepBudget:
    __slots__ = (
        "_cost",
        "_is_minimum_due",
        "_kept_ms",
        "_model",
        "_now_us",
        "_overdue_taken",
        "_yielding_ms",
        "left_ms",
        "prefill",
    )

    def __init__(self, model: ReplicaModel, *, decoding: bool, now_us: int) -> None:
        self._model, self._cost = model, model.cost
        self.left_ms = (model.allowed_ms if decoding else model.idle_ms) - model.cost.base_ms
        self.prefill = 0  # prompt tokens in the step
        self._kept_ms = 0.0
        self._yielding_ms = 0.0
        self._is_minimum_due = True
        self._overdue_taken = False
        self._now_us = now_us

    def keep_for(self, lanes: list[Lane]) -> None:
        """Time that prompts may not take from these decodes: a floor, and all of the overdue ones."""
        total = overdue = 0.0
        for lane in lanes:
            total += lane.decodes_ms(self._cost)
            for row in lane.rows:  # those that ran longest ago first
                if not self._is_overdue(lane.row_ran_us(row)):
                    break
                overdue += self._cost.decode_ms(lane.context_of(row))
        self._kept_ms = max(overdue, YIELDING_FLOOR * total)
        self._yielding_ms = total

    def keep_all(self) -> None:
        """From now on prompts leave all of these decodes their time."""
        self._kept_ms = self._yielding_ms

    def begin_yielding(self, *, others: bool) -> None:
        """From now on for over-share flows; `others`: the step holds rows within their share already."""
        self._kept_ms = 0.0
        self._is_minimum_due = not others

    def take_overdue(self, lane: Lane, row: Row) -> bool:
        """One overdue decode a step runs whether it fits or not, so that a pause ends."""
        is_taken = self._overdue_taken
        self._overdue_taken = is_taken or self._is_overdue(lane.row_ran_us(row))
        return self._overdue_taken and not is_taken

    def prefill_tokens(self, row: Row, start: int) -> int:
        """How many of this row's prompt tokens, after `start` computed ones, the step has room for."""
        model = self._model
        most = max(model.max_prefill_tokens - self.prefill, 0)
        affordable = self._cost.chunk_tokens(self.left_ms - self._kept_ms, start, most)
        if self._is_minimum_due or self._is_overdue(row.ran_us):
            affordable = max(affordable, min(model.min_prefill_tokens - self.prefill, most))
        return affordable

    def _is_overdue(self, ran_us: int) -> bool:
        return self._now_us - ran_us >= PAUSE_US
