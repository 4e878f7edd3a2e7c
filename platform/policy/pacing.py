"""How long the next step may last, so that running streams keep their inter-token latency.

Sarathi-Serve's token budget (arXiv 2403.02310), found there by profiling, made a controlled variable:
`step_cost` predicts what a step lasts, and this keeps the 95th percentile of steps at the target. Pure: the
caller measures, and passes milliseconds.
"""

from bisect import bisect_left, insort
from collections import deque

from policy.step_cost import StepCost, StepModel, chunk_pairs

IDLE_FACTOR = 4  # a step may last this many targets when no stream waits for its next token
WINDOW = 100  # steps that the margin is taken from, and between two corrections of the aim
QUANTILE = 0.95
ENOUGH = 20  # steps, before which the margin is FIRST_MARGIN
# The rest are parts of the target.
FIRST_MARGIN, LEAST_MARGIN, MOST_MARGIN = 0.1, 0.005, 0.2
FIRST_AIM, LEAST_AIM, AIM_UP, AIM_DOWN = 0.95, 0.7, 0.0125, 0.1


__all__ = ["StepCost", "StepPacer", "chunk_pairs"]


class StepPacer:
    """Learns from `observe` what a step costs, and says what the next may hold.

    `min_tokens` of prompt belong into a step even when decodes alone exceed the target, so that prompts
    always make progress. Until it has learnt, it guesses that they take a quarter of the target.
    """

    def __init__(self, target_ms: float, *, min_tokens: int = 16, max_tokens: int = 512) -> None:
        if target_ms <= 0:
            raise ValueError(f"target_ms must be positive, not {target_ms}")
        self.target_ms = target_ms
        self.min_tokens = min_tokens
        self.max_tokens = max_tokens
        quarter = target_ms / 4
        scale = StepCost(1, 4, 8 * min_tokens, 16_384, 8192 * min_tokens)
        guess = StepCost(
            quarter, quarter / 128, quarter / min_tokens, quarter / 65_536, quarter / min_tokens / 4096
        )
        self._model = StepModel(scale, guess)
        self._aim_ms = FIRST_AIM * target_ms
        self._residuals = SlidingQuantile(WINDOW)
        self._full_steps: list[float] = []

    @property
    def cost(self) -> StepCost:
        return self._model.cost

    @property
    def margin_ms(self) -> float:
        """What the prediction is too short by, in one step of twenty."""
        if len(self._residuals) < ENOUGH:
            return FIRST_MARGIN * self.target_ms
        residual_ms = self._residuals.value(QUANTILE)
        return min(max(residual_ms, LEAST_MARGIN * self.target_ms), MOST_MARGIN * self.target_ms)

    def allowed_ms(self) -> float:
        """What a step that decodes is to last by prediction."""
        return self._aim_ms - self.margin_ms

    def idle_ms(self) -> float:
        """The same for a step while no stream waits for its next token."""
        return IDLE_FACTOR * self.target_ms - self.margin_ms

    def predict_ms(
        self, decode_rows: int, prefill_tokens: int, context_tokens: int, prefill_pairs: int = 0
    ) -> float:
        """`context_tokens`: KV tokens read by decoding rows; `prefill_pairs`: see `chunk_pairs`."""
        return self.cost.predict_ms(decode_rows, prefill_tokens, context_tokens, prefill_pairs)

    def row_limit(self, mean_context_tokens: float) -> int:
        """Rows that one step can decode within the target beside `min_tokens` of prompt; at least 1."""
        cost = self.cost
        left_ms = self.allowed_ms() - cost.base_ms - cost.token_ms * self.min_tokens
        return max(1, int(left_ms / max(cost.row_ms + cost.context_ms * mean_context_tokens, 1e-6)))

    def observe(
        self,
        decode_rows: int,
        prefill_tokens: int,
        context_tokens: int,
        step_ms: float,
        prefill_pairs: int = 0,
    ) -> None:
        """Learn from a step that was measured, from the end of the step before if that left work."""
        predicted_ms = self.cost.predict_ms(decode_rows, prefill_tokens, context_tokens, prefill_pairs)
        if decode_rows and predicted_ms > self.target_ms / 2:
            self._residuals.add(step_ms - predicted_ms)
            if prefill_tokens > self.min_tokens and predicted_ms > 0.8 * self.allowed_ms():
                self._correct_aim(step_ms)
        if self._model.observe(decode_rows, prefill_tokens, context_tokens, prefill_pairs, step_ms):
            self._residuals.clear()  # they belong to costs that were given up

    def _correct_aim(self, step_ms: float) -> None:
        """By steps whose length was in our hands: those that decodes alone overfill say nothing of it."""
        self._full_steps.append(step_ms)
        if len(self._full_steps) < WINDOW:
            return
        high_ms = sorted(self._full_steps)[int(QUANTILE * WINDOW)]
        self._full_steps.clear()
        if high_ms > self.target_ms:
            self._aim_ms -= min(AIM_DOWN * self.target_ms, high_ms - self.target_ms)
        elif high_ms < QUANTILE * self.target_ms:
            self._aim_ms += AIM_UP * self.target_ms
        self._aim_ms = min(max(self._aim_ms, LEAST_AIM * self.target_ms), self.target_ms)


class SlidingQuantile:
    """Quantiles of the last `size` values."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._by_age: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._by_age) == self._size:
            del self._sorted[bisect_left(self._sorted, self._by_age.popleft())]
        self._by_age.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        self._by_age.clear()
        self._sorted.clear()

    def value(self, quantile: float) -> float:
        return self._sorted[int(quantile * len(self._sorted))]
