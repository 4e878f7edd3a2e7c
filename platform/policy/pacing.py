"""How many prompt tokens the next step may compute so that running streams keep their inter-token latency.

Step time is modelled as `base + per_row·decode_rows + per_token·prefill_tokens`, costs not negative, and
fitted to the last steps by least squares with forgetting. Pure: the caller measures, and passes milliseconds.

The controller makes its own data poor: it trades decode rows for prompt tokens so that every step lasts the
same, and then their costs cannot be told apart. A weak pull towards plausible costs (ridge) decides what the
data leave open. (Recursive least squares with clamped costs, tried first, drifted and stayed there.)
"""

IDLE_FACTOR = 4  # a step may last this many targets when no stream waits for its next token
FORGETTING = 0.98  # half of the weight lies within the last 35 steps
OUTLIER = 0.5  # a step counts as at most this far from its prediction, so that one hiccup teaches little
RIDGE = 0.3  # the pull counts like this many steps
SCALES = (1.0, 32.0, 128.0)  # features are divided by these to be of like size
PLAUSIBLE_MS = (5.0, 20.0, 60.0)  # per unit of scaled feature


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
        self._costs = list(PLAUSIBLE_MS)
        self._moments = [[0.0] * 3 for _ in range(3)]  # sum of x xT, decayed
        self._targets = [0.0] * 3  # sum of x · milliseconds, decayed

    def predict_ms(self, decode_rows: int, prefill_tokens: int) -> float:
        return _dot(self._costs, _features(decode_rows, prefill_tokens))

    def prefill_budget(self, decode_rows: int) -> int:
        """Prompt tokens for a step that also decodes `decode_rows` rows."""
        allowed_ms = self.target_ms if decode_rows else self.target_ms * IDLE_FACTOR
        slack_ms = allowed_ms - self.predict_ms(decode_rows, 0)
        per_token_ms = self._costs[2] / SCALES[2]
        if slack_ms <= 0:
            return self._min_tokens
        if per_token_ms * self._max_tokens <= slack_ms:
            return self._max_tokens
        return max(self._min_tokens, int(slack_ms / per_token_ms))

    def observe(self, decode_rows: int, prefill_tokens: int, step_ms: float) -> None:
        """Learn from a step that was measured."""
        x = _features(decode_rows, prefill_tokens)
        predicted = _dot(self._costs, x)
        limit = OUTLIER * max(predicted, 1.0)
        believed = predicted + max(-limit, min(limit, step_ms - predicted))
        for row in range(3):
            self._targets[row] = FORGETTING * self._targets[row] + x[row] * believed
            for column in range(3):
                self._moments[row][column] = FORGETTING * self._moments[row][column] + x[row] * x[column]
        self._costs = self._fit()

    def _fit(self) -> list[float]:
        """Least squares; a cost that comes out negative is held at zero and the others are fitted again."""
        free = [0, 1, 2]
        while free:
            matrix = [[self._moments[r][c] + (RIDGE if r == c else 0.0) for c in free] for r in free]
            solved = _solve(matrix, [self._targets[r] + RIDGE * PLAUSIBLE_MS[r] for r in free])
            worst = min(range(len(free)), key=solved.__getitem__)
            if solved[worst] >= 0:
                return [solved[free.index(index)] if index in free else 0.0 for index in range(3)]
            del free[worst]
        return [0.0, 0.0, 0.0]


def _features(decode_rows: int, prefill_tokens: int) -> list[float]:
    return [1.0 / SCALES[0], decode_rows / SCALES[1], prefill_tokens / SCALES[2]]


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination. The matrix is symmetric and, with the ridge, positive definite: no pivoting."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for index, pivot in enumerate(rows):
        for below in rows[index + 1 :]:
            factor = below[index] / pivot[index]
            below[:] = [value - factor * above for value, above in zip(below, pivot, strict=True)]
    solution: list[float] = []
    for index in range(len(rows) - 1, -1, -1):
        known = sum(rows[index][index + 1 + at] * value for at, value in enumerate(solution))
        solution.insert(0, (rows[index][-1] - known) / rows[index][index])
    return solution
