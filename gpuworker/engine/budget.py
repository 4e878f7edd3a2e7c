"""What one step may cost, and what is left of it while the step is being composed. No torch, no clock.

With a pacer the budget is time, from the target inter-token latency; without one it is a number of tokens.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Rows

from gpuworker.engine.sequence import Sequence
from policy.pacing import StepCost, StepPacer

MAX_STEP_TOKENS = 512
MIN_PREFILL_TOKENS = 16  # prefill goes on at this pace however many rows decode
PAUSE_MS = 250.0  # a row that was left out for this long is overdue
OVERDUE_PART = 0.1  # of the time of over-share flows' decodes, which a step keeps for those that are overdue
UNLIMITED_MS = 1e9
UNMEASURED = StepCost(base_ms=0.0, row_ms=2.0, token_ms=1.0, context_ms=0.0)


class StepBudget:
    def __init__(
        self,
        cost: StepCost,
        *,
        left_ms: float,
        min_tokens: int,
        max_tokens: int,
        now_ms: float,
        longer_ms: float = 0.0,
    ) -> None:
        """`longer_ms`: what the step may last beyond `left_ms` for prompts that end with it."""
        self.kept: list[Sequence] = []  # overdue decodes that the step runs whether they fit or not
        self._cost = cost
        self._left_ms = left_ms
        self._longer_ms = longer_ms
        self._kept_ms = 0.0
        self._yielding_ms = 0.0
        self._owed_ms = 0.0  # to prompts of batch
        self._batch_ms = 0.0  # that batch can use of what it is owed, without rows that wait
        self._prompts_ms = UNLIMITED_MS  # for prompts, whatever else is left
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._prefill = 0
        self._now_ms = now_ms
        self._is_minimum_due = True

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
        self._prompts_ms -= cost_ms
        self._prefill += count
        return cost_ms

    @property
    def most_ms(self) -> float:
        """What the rows of the step may cost: by its time, or if that has no limit by its prompt tokens."""
        is_timed = self._left_ms < UNLIMITED_MS
        return self._left_ms + self._longer_ms if is_timed else self.chunk_ms(0, self._max_tokens)

    def owe_batch(self, rows: Iterable[Sequence], prompts: Iterable[Sequence], owed_ms: float) -> None:
        """Time that batch has in place of others: for the first of these decodes, then for prompts."""
        for row in rows:
            if self._kept_ms >= owed_ms:
                break
            self.kept.append(row)
            self._kept_ms += self.decode_ms(row)
        self._owed_ms = max(owed_ms - self._kept_ms, 0.0)
        begun_ms = sum(self.chunk_ms(row.num_computed, row.remaining) for row in prompts)
        self._batch_ms = self._kept_ms + min(self._owed_ms, begun_ms)

    def left_out(self, rows: Collection[Sequence]) -> list[Sequence]:
        """Of decodes within their share those that leave batch the time it is owed, if it is short: none is
        overdue, and their cost is no more than that."""
        short_ms = min(self._batch_ms + sum(map(self.decode_ms, rows)) - self._left_ms, self._batch_ms)
        out: list[Sequence] = []
        by_turn = sorted(rows, key=lambda row: (row.last_run_ms, row.output_len), reverse=True)
        for row in by_turn if short_ms > 0 else ():
            if short_ms <= 0 or self._is_overdue(row):
                break
            out.append(row)
            short_ms -= self.decode_ms(row)
        return out

    def keep_for(self, rows: Collection[Sequence]) -> None:
        """Of these decodes those that prompts may not take the time from: the longest overdue, a part of all
        a step. They were paused together; at once they would fill a step in the middle of a prompt."""
        overdue = sorted(filter(self._is_overdue, rows), key=lambda row: row.last_run_ms)
        self._yielding_ms = sum(map(self.decode_ms, rows))
        kept_ms = 0.0
        for row in overdue:
            if kept_ms >= OVERDUE_PART * self._yielding_ms:
                break
            kept_ms += self.decode_ms(row)
            if row not in self.kept:
                self.kept.append(row)
                self._kept_ms += self.decode_ms(row)
        if overdue:
            self._longer_ms = 0.0

    def begin_batch(self) -> bool:
        """From now on prompts of batch, for what it is owed: False when that is nothing."""
        self._prompts_ms = self._owed_ms
        return self._owed_ms > 0

    def end_batch(self) -> None:
        self._prompts_ms = UNLIMITED_MS

    def keep_all(self) -> None:
        """From now on prompts leave all of these decodes their time, and no step lasts longer for them."""
        self._kept_ms, self._longer_ms = self._yielding_ms, 0.0

    def begin_yielding(self, *, others: bool) -> None:
        """From now on for over-share flows; `others`: the step holds rows within their share already."""
        self._kept_ms = 0.0
        self._is_minimum_due = not others

    def has_room_for(self, sequence: Sequence) -> bool:
        return self.decode_ms(sequence) <= self._left_ms

    def prefill_tokens(self, sequence: Sequence) -> int:
        """How many of this row's prompt tokens the step has room for."""
        most = max(self._max_tokens - self._prefill, 0)
        left_ms, start = self._left_ms - self._kept_ms, sequence.num_computed
        affordable = self._cost.chunk_tokens(min(left_ms, self._prompts_ms), start, most)
        longest_ms = min(left_ms + self._longer_ms, self._prompts_ms)
        if affordable < sequence.remaining <= self._cost.chunk_tokens(longest_ms, start, most):
            affordable = sequence.remaining
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

    def budget(self, decoding: Rows[Sequence], now_ms: float, *, all_yield: bool = False) -> StepBudget:
        """For a step in which these rows are due for their next token. `all_yield`: all to others: then the
        step may last longer for a prompt that ends with it, as nobody's next token waits for that."""
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
            longer_ms=pacer.idle_ms() - allowed_ms if all_yield else 0.0,
        )
