"""A machine whose steps last what a StepCost says, and a load that is planned by a pacer."""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from policy.pacing import StepCost, StepPacer, chunk_pairs


class Step(NamedTuple):
    ms: float
    decode_rows: int
    prefill_tokens: int
    context_tokens: int
    prefill_pairs: int


@dataclass
class Machine:
    """Decodes every row at every step, prompts with what is left of the budget, as the scheduler does."""

    cost: StepCost
    seed: int = 1
    noise: float = 0.03  # standard deviation, as a part of the step
    outliers: float = 0.0  # part of the steps that last `outlier_ms` longer
    outlier_ms: float = 15.0
    rows: list[int] = field(default_factory=list)  # context of each decoding row
    prompts: list[tuple[int, int]] = field(default_factory=list)  # (computed, length) of what waits or runs

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def step(self, pacer: StepPacer) -> Step:
        decode_rows, context = len(self.rows), sum(self.rows)
        allowed_ms = pacer.allowed_ms() if decode_rows else pacer.idle_ms()
        left_ms = allowed_ms - pacer.predict_ms(decode_rows, 0, context)
        tokens, pairs, begun = 0, 0, []
        while self.prompts:
            start, length = self.prompts[0]
            affordable = pacer.cost.chunk_tokens(left_ms, start, pacer.max_tokens)
            count = min(max(affordable, pacer.min_tokens - tokens), length - start, pacer.max_tokens - tokens)
            if count <= 0:
                break
            tokens, pairs = tokens + count, pairs + chunk_pairs(count, start)
            left_ms -= pacer.cost.chunk_ms(count, start)
            self.prompts[0] = (start + count, length)
            if start + count == length:
                begun.append(self.prompts.pop(0)[1])
        ms = self.cost.predict_ms(decode_rows, tokens, context, pairs) * self.random.gauss(1, self.noise)
        if self.random.random() < self.outliers:
            ms += self.outlier_ms
        pacer.observe(decode_rows, tokens, context, ms, pairs)
        self.rows = [row + 1 for row in self.rows] + begun
        return Step(ms, decode_rows, tokens, context, pairs)

    def run(
        self, pacer: StepPacer, steps: int, *, lengths: list[int], output_tokens: int, max_rows: int = 10_000
    ) -> list[Step]:
        """Prompts of these lengths are always waiting; a row ends after `output_tokens` on average."""
        done = []
        for _ in range(steps):
            mean_context = sum(self.rows) / len(self.rows) if self.rows else 0
            limit = min(max_rows, pacer.row_limit(mean_context))
            while len(self.prompts) < 4 and len(self.rows) + len(self.prompts) < limit:
                self.prompts.append((0, self.random.choice(lengths)))
            done.append(self.step(pacer))
            self.rows = [row for row in self.rows if self.random.random() > 1 / output_tokens]
        return done


def p95_ms(steps: list[Step]) -> float:
    """Of the steps between two tokens of a stream."""
    times = sorted(step.ms for step in steps if step.decode_rows)
    return times[int(0.95 * len(times))]
