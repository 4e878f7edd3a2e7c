"""How many prompt tokens the next step may compute so that running streams keep their inter-token latency.

Step time is modelled as `base + per_row·decode_rows + per_token·prefill_tokens` and fitted online by
recursive least squares with forgetting. Pure: the caller measures, and passes milliseconds in.
"""

FORGETTING = 0.98  # half of the weight lies within the last 35 steps
OUTLIER = 0.5  # a step counts as at most this far from its prediction, so that one hiccup teaches little
TRACE_LIMIT = 1e4  # covariance is held below this, else long idle spells make the next step overreact
SCALES = (1.0, 32.0, 128.0)  # features are divided by these to be of like size
PRIOR_MS = (5.0, 20.0, 60.0)  # per unit of scaled feature, before the first measurement


class StepPacer:
    """Prefill budget from a target inter-token latency.

    `min_tokens` is granted even when decodes alone exceed the target, so that prompts always make progress.
    """

    def __init__(self, target_ms: float, *, min_tokens: int = 16, max_tokens: int = 512) -> None:
        if target_ms <= 0:
            raise ValueError(f"target_ms must be positive, not {target_ms}")
        self.target_ms = target_ms
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._weights = list(PRIOR_MS)
        self._covariance = [[100.0 if row == column else 0.0 for column in range(3)] for row in range(3)]

    def predict_ms(self, decode_rows: int, prefill_tokens: int) -> float:
        return _dot(self._weights, _features(decode_rows, prefill_tokens))

    def prefill_budget(self, decode_rows: int) -> int:
        """Prompt tokens for a step that also decodes `decode_rows` rows."""
        slack_ms = self.target_ms - self.predict_ms(decode_rows, 0)
        per_token_ms = self._weights[2] / SCALES[2]
        if slack_ms <= 0:
            return self._min_tokens
        if per_token_ms * self._max_tokens <= slack_ms:
            return self._max_tokens
        return max(self._min_tokens, int(slack_ms / per_token_ms))

    def observe(self, decode_rows: int, prefill_tokens: int, step_ms: float) -> None:
        """Learn from a step that was measured."""
        x = _features(decode_rows, prefill_tokens)
        predicted = _dot(self._weights, x)
        limit = OUTLIER * max(predicted, 1.0)
        error = max(-limit, min(limit, step_ms - predicted))
        spread = [_dot(row, x) for row in self._covariance]
        gain = [value / (FORGETTING + _dot(spread, x)) for value in spread]
        # A negative cost is an artefact of noise; clamping keeps budgets finite.
        self._weights = [max(0.0, weight + g * error) for weight, g in zip(self._weights, gain, strict=True)]
        for row in range(3):
            for column in range(3):
                update = self._covariance[row][column] - gain[row] * spread[column]
                self._covariance[row][column] = update / FORGETTING
        trace = sum(self._covariance[index][index] for index in range(3))
        if trace > TRACE_LIMIT:
            self._covariance = [[value * TRACE_LIMIT / trace for value in row] for row in self._covariance]


def _features(decode_rows: int, prefill_tokens: int) -> list[float]:
    return [1.0 / SCALES[0], decode_rows / SCALES[1], prefill_tokens / SCALES[2]]


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
