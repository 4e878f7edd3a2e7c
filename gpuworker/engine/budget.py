"""What one step may cost, and what is left of it while the step is being composed. No torch, no clock.

With a pacer the budget is time, from the target inter-token latency; without one it is a number of tokens.
"""

from collections.abc import Collection
from collections.abc import Sequence as Rows

from gpuworker.engine.sequence import Sequence
from policy.pacing import StepCost, StepPacer

MAX_STEP_TOKENS = 512
MIN_PREFILL_TOKENS = 16  # prefill goes on at this pace however many rows decode
PAUSE_MS = 250.0  # a row that was left out for this long is overdue
YIELDING_FLOOR = 0.1  # of the time that the decodes of over-share flows would take, kept from prompts
UNLIMITED_MS = 1e9
UNMEASURED = StepCost(base_ms=0.0, row_ms=2.0, token_ms=1.0, context_ms=0.0)


class StepBudget:
    def __init__(
        self, cost: StepCost, *, left_ms: float, min_tokens: int, max_tokens: int, now_ms: float
    ) -> None:
        self._cost = cost
        self._left_ms = left_ms
        self._kept_ms = 0.0
        self._yielding_ms = 0.0
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._prefill = 0
        self._now_ms = now_ms
        self._is_minimum_due = True
        self._overdue_taken = False

    def decode_ms(self, sequence: Sequence) -> float:
        return self._cost.decode_ms(len(sequence.token_ids))

    def chunk_ms(self, start: int, count: int) -> float:
        return self._cost.chunk_ms(count, start)

    def spend_decode(self, sequence: Sequence) -> float:
        """Returns its milliseconds."""
        cost_ms = self.decode_ms(sequence)
        self._left_ms -= cost_ms
        return cost_ms

    def spend_chunk(self, start: int, count: int) -> float:
        """Returns its milliseconds."""
        cost_ms = self.chunk_ms(start, count)
        self._left_ms -= cost_ms
        self._prefill += count
        return cost_ms

    def keep_for(self, rows: Collection[Sequence]) -> None:
        """Time that prompts may not take from these decodes: a floor, and all of the overdue ones."""
        total = sum(map(self.decode_ms, rows))
        overdue = sum(self.decode_ms(row) for row in rows if self._is_overdue(row))
        self._kept_ms = max(overdue, YIELDING_FLOOR * total)
        self._yielding_ms = total

    def keep_all(self) -> None:
        """From now on prompts leave all of these decodes their time."""
        self._kept_ms = self._yielding_ms

    def begin_yielding(self, *, others: bool) -> None:
        """From now on for over-share flows; `others`: the step holds rows within their share already."""
        self._kept_ms = 0.0
        self._is_minimum_due = not others

    def has_room_for(self, sequence: Sequence) -> bool:
        return self.decode_ms(sequence) <= self._left_ms

    def take_overdue(self, sequence: Sequence) -> bool:
        """One overdue decode a step runs whether it fits or not, so that a pause ends."""
        is_taken = self._overdue_taken
        self._overdue_taken = is_taken or self._is_overdue(sequence)
        return self._overdue_taken and not is_taken

    def prefill_tokens(self, sequence: Sequence) -> int:
        """How many of this row's prompt tokens the step has room for."""
        most = max(self._max_tokens - self._prefill, 0)
        affordable = self._cost.chunk_tokens(self._left_ms - self._kept_ms, sequence.num_computed, most)
        if self._is_minimum_due or self._is_overdue(sequence):
            affordable = max(affordable, min(self._min_tokens - self._prefill, most))
        return affordable

    def _is_overdue(self, sequence: Sequence) -> bool:
        return self._now_ms - sequence.last_run_ms >= PAUSE_MS


class StepLimits:
    """Where budgets come from."""

    def __init__(
        self, pacer: StepPacer | None, *, max_rows: int, max_step_tokens: int = MAX_STEP_TOKENS
    ) -> None:
        self._pacer = pacer
        self._max_rows = max_rows
        self._max_step_tokens = max_step_tokens

    def cost(self) -> StepCost:
        return UNMEASURED if self._pacer is None else self._pacer.cost

    def row_limit(self, rows: Rows[Sequence]) -> int:
        """How many rows of this length can decode within the target latency."""
        if self._pacer is None:
            return self._max_rows
        mean_context = sum(len(row.token_ids) for row in rows) / max(len(rows), 1)
        return min(self._pacer.row_limit(mean_context), self._max_rows)

    def budget(self, decoding: Rows[Sequence], now_ms: float) -> StepBudget:
        """For a step in which these rows are due for their next token."""
        if self._pacer is None:
            most = max(self._max_step_tokens - len(decoding), MIN_PREFILL_TOKENS)
            return StepBudget(
                UNMEASURED,
                left_ms=UNLIMITED_MS,
                min_tokens=MIN_PREFILL_TOKENS,
                max_tokens=most,
                now_ms=now_ms,
            )
        pacer = self._pacer
        allowed_ms = pacer.allowed_ms() if decoding else pacer.idle_ms()
        return StepBudget(
            pacer.cost,
            left_ms=allowed_ms - pacer.cost.base_ms,
            min_tokens=pacer.min_tokens,
            max_tokens=min(pacer.max_tokens, self._max_step_tokens),
            now_ms=now_ms,
        )
