"""What a step lasts, fitted online to the steps that were measured.

    milliseconds = base + row · decode_rows + token · prefill_tokens
                 + context · context_tokens + pair · prefill_pairs

Who plans steps by this model makes its data poor: decodes and prompt tokens are traded for one another so
that every step lasts the same, rows and the context they read grow together, and for minutes no prompt comes
at all. So there are two memories. The recent one, of the last 35 steps, follows the machine; what those steps
leave open, it takes from the lasting one, of the last few hundred steps with prompt tokens, which decodes
alone do not wash out; what these leave open in turn comes from a cautious first guess. (Recursive least
squares with clamped costs, tried first, drifted and stayed there.)
"""

from dataclasses import astuple, dataclass
from math import sqrt

from policy.least_squares import Moments

RECENT, LASTING = 0.98, 0.998  # what a step counts when the next has come: halved after 35 and after 350
PULL = 0.3  # the less certain memory counts like this many steps
OUTLIER = 0.5  # a step is believed to be at most this part off its prediction: a hiccup teaches little
SURPRISE, IN_A_ROW = 0.1, 4  # so many steps so far off on one side are no accident: old ones count less
RECENT_FADE, LASTING_FADE = 0.2, 0.5
LASTING_EVERY = 8  # steps between two fits of the lasting memory, which changes slowly


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds, none negative. On one workload rows and the context they read grow together, and only the
    sum of their costs is certain: these are no prices."""

    base_ms: float
    row_ms: float  # per decoding row
    token_ms: float  # per prompt token
    context_ms: float  # per KV token that a decoding row reads
    pair_ms: float = 0.0  # per pair of a prompt token and a KV token that it attends to: see `chunk_pairs`

    def predict_ms(
        self, decode_rows: float, prefill_tokens: float, context_tokens: float, prefill_pairs: float = 0
    ) -> float:
        return (
            self.base_ms
            + self.row_ms * decode_rows
            + self.token_ms * prefill_tokens
            + self.context_ms * context_tokens
            + self.pair_ms * prefill_pairs
        )

    def decode_ms(self, context_tokens: float) -> float:
        """What one decoding row adds to a step."""
        return self.row_ms + self.context_ms * context_tokens

    def chunk_ms(self, tokens: int, start: int) -> float:
        """What `tokens` of a prompt add to a step, after `start` computed ones."""
        return self.token_ms * tokens + self.pair_ms * chunk_pairs(tokens, start)

    def chunk_tokens(self, left_ms: float, start: int, most: int) -> int:
        """The largest chunk after `start` computed tokens that adds no more than `left_ms`: 0 to `most`."""
        if left_ms <= 0:
            return 0
        linear, square = self.token_ms + self.pair_ms * (start + 0.5), self.pair_ms / 2
        # The smaller root of square · n² + linear · n = left_ms, in the form that bears square = 0.
        divisor = linear + sqrt(linear * linear + 4 * square * left_ms)
        return most if divisor * most <= 2 * left_ms else int(2 * left_ms / divisor)


def chunk_pairs(tokens: int, start: int) -> int:
    """Pairs of a prompt token and a KV token that it attends to, in a chunk after `start` computed tokens."""
    return tokens * start + tokens * (tokens + 1) // 2


class StepModel:
    """`scale`: how large the count behind each cost usually is; `guess`: what each costs until steps tell."""

    def __init__(self, scale: StepCost, guess: StepCost) -> None:
        self.cost = guess
        self._scale: tuple[float, ...] = astuple(scale)
        self._guess = [cost * size for cost, size in zip(astuple(guess), self._scale, strict=True)]
        self._lasting_fit = self._guess
        self._recent = Moments(5, RECENT)
        self._lasting = Moments(5, LASTING)
        self._mixed_steps = 0
        self._surprises = 0  # in a row; negative when the steps were shorter than predicted

    def observe(
        self, decode_rows: int, prefill_tokens: int, context_tokens: int, prefill_pairs: int, step_ms: float
    ) -> bool:
        """Whether this was one surprise too many, so that older steps count less from now on."""
        predicted_ms = self.cost.predict_ms(decode_rows, prefill_tokens, context_tokens, prefill_pairs)
        deviation = step_ms / max(predicted_ms, 0.1) - 1
        gave_up = self._notice(deviation)
        believed_ms = max(predicted_ms, 0.1) * (1 + min(max(deviation, -OUTLIER), OUTLIER))
        raw = (1, decode_rows, prefill_tokens, context_tokens, prefill_pairs)
        features = [value / size for value, size in zip(raw, self._scale, strict=True)]
        self._recent.add(features, believed_ms)
        if prefill_tokens:
            self._lasting.add(features, believed_ms)
            self._mixed_steps += 1
            if self._mixed_steps % LASTING_EVERY == 0:
                self._lasting_fit = self._lasting.solve(self._guess, PULL)
        fit = self._recent.solve(self._lasting_fit, PULL)
        self.cost = StepCost(*[cost / size for cost, size in zip(fit, self._scale, strict=True)])
        return gave_up

    def _notice(self, deviation: float) -> bool:
        """`deviation` of a step from its prediction, as a part of it."""
        if abs(deviation) < SURPRISE:
            self._surprises = 0
            return False
        side = 1 if deviation > 0 else -1
        self._surprises = self._surprises + side if self._surprises * side > 0 else side
        if self._surprises % IN_A_ROW:
            return False
        self._recent.fade(RECENT_FADE)
        self._lasting.fade(LASTING_FADE)
        return True
