"""What is left of a step's time while it is composed: the rules of the worker's `engine/budget`."""

from collections.abc import Iterator
from heapq import merge
from math import inf

from fleetsim.replica_model import ReplicaModel
from fleetsim.rows import Lane, Row
from policy.flow import Flow

PAUSE_US = 250_000  # a row that was left out for this long is overdue
OVERDUE_PART = 0.1  # of the time of over-share flows' decodes, which a step keeps for those that are overdue


class StepBudget:
    __slots__ = (
        "_cost",
        "_is_minimum_due",
        "_kept_ms",
        "_longer_ms",
        "_model",
        "_now_us",
        "_owed_ms",
        "_prompts_ms",
        "_yielding_ms",
        "batch_ms",
        "kept",
        "left_ms",
        "prefill",
    )

    def __init__(self, model: ReplicaModel, *, decoding: bool, all_yield: bool, now_us: int) -> None:
        self._model, self._cost = model, model.cost
        self.left_ms = (model.allowed_ms if decoding else model.idle_ms) - model.cost.base_ms
        # By flow how many of its decodes, those that waited longest, run whether they fit or not; their time.
        self.kept: dict[Flow, tuple[int, float]] = {}
        self.prefill = 0  # prompt tokens in the step
        self._longer_ms = model.idle_ms - model.allowed_ms if decoding and all_yield else 0.0
        self.batch_ms = 0.0  # that batch can use of what it is owed, without rows that wait
        self._kept_ms = 0.0
        self._yielding_ms = 0.0
        self._owed_ms = 0.0  # to prompts of batch
        self._prompts_ms = inf  # for prompts, whatever else is left
        self._is_minimum_due = True
        self._now_us = now_us

    @property
    def most_ms(self) -> float:
        """What the rows of the step may cost."""
        return self.left_ms + self._longer_ms

    def owe_batch(self, lanes: list[Lane], owed_ms: float) -> None:
        """Time that batch has in place of others: for the first decodes of these lanes, then for prompts."""
        begun_ms = 0.0
        for lane in lanes:
            rows, kept_ms = 0, 0.0
            for row in lane.rows:
                if self._kept_ms >= owed_ms:
                    break
                rows, kept_ms = rows + 1, kept_ms + self._cost.decode_ms(lane.context_of(row))
                self._kept_ms += self._cost.decode_ms(lane.context_of(row))
            if rows:
                self.kept[lane.flow] = rows, kept_ms
            for row in lane.begun:
                begun_ms += self._cost.chunk_ms(row.left_tokens, row.need_tokens - row.left_tokens)
        self._owed_ms = max(owed_ms - self._kept_ms, 0.0)
        self.batch_ms = self._kept_ms + min(self._owed_ms, begun_ms)

    def keep_for(self, lanes: list[Lane]) -> None:
        """Of these decodes those that prompts may not take the time from: the longest overdue, a part of all
        a step. They were paused together; at once they would fill a step in the middle of a prompt."""
        self._yielding_ms = sum(lane.decodes_ms(self._cost) for lane in lanes)
        overdue_ms = 0.0
        seen: dict[Flow, int] = {}
        for ran_us, flow, lane, row in merge(*map(_by_wait, lanes)):
            if not self._is_overdue(ran_us):
                break
            self._longer_ms = 0.0
            if overdue_ms >= OVERDUE_PART * self._yielding_ms:
                break
            row_ms = self._cost.decode_ms(lane.context_of(row))
            overdue_ms += row_ms
            seen[flow] = seen.get(flow, 0) + 1
            rows, kept_ms = self.kept.get(flow, (0, 0.0))
            if seen[flow] > rows:  # not among those of batch that are kept anyway
                self.kept[flow] = rows + 1, kept_ms + row_ms
                self._kept_ms += row_ms

    def begin_batch(self) -> bool:
        """From now on prompts of batch, for what it is owed: False when that is nothing."""
        self._prompts_ms = self._owed_ms
        return self._owed_ms > 0

    def end_batch(self) -> None:
        self._prompts_ms = inf

    def spend_chunk(self, count: int, cost_ms: float) -> None:
        self.prefill += count
        self.left_ms -= cost_ms
        self._prompts_ms -= cost_ms

    def keep_all(self) -> None:
        """From now on prompts leave all of these decodes their time, and no step lasts longer for them."""
        self._kept_ms, self._longer_ms = self._yielding_ms, 0.0

    def begin_yielding(self, *, others: bool) -> None:
        """From now on for over-share flows; `others`: the step holds rows within their share already."""
        self._kept_ms = 0.0
        self._is_minimum_due = not others

    def prefill_tokens(self, row: Row, start: int) -> int:
        """How many of this row's prompt tokens, after `start` computed ones, the step has room for."""
        model = self._model
        most = max(model.max_prefill_tokens - self.prefill, 0)
        left_ms = self.left_ms - self._kept_ms
        affordable = self._cost.chunk_tokens(min(left_ms, self._prompts_ms), start, most)
        longest_ms = min(left_ms + self._longer_ms, self._prompts_ms)
        if affordable < row.left_tokens <= self._cost.chunk_tokens(longest_ms, start, most):
            affordable = row.left_tokens
        if self._is_minimum_due or self._is_overdue(row.ran_us):
            affordable = max(affordable, min(model.min_prefill_tokens - self.prefill, most))
        return affordable

    def _is_overdue(self, ran_us: int) -> bool:
        return self._now_us - ran_us >= PAUSE_US


def _by_wait(lane: Lane) -> Iterator[tuple[int, Flow, Lane, Row]]:
    """When each of its decodes ran last, the longest ago first. The first two order several lanes."""
    return ((lane.row_ran_us(row), lane.flow, lane, row) for row in lane.rows)
