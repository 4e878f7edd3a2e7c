"""What a request costs in machine time, before it ran: by the fitted cost of a step, or by its tokens.

Estimates need not be right, only alike: waiting times are work divided by the rate at which the same kind of
estimate leaves the queue.
"""

from dataclasses import dataclass

from policy.step_cost import StepCost
from policy.waiting import Waiting

PROMPT_TOKEN_MS = 0.1  # while no replica told its costs; an output token counts for two
OUTPUT_TOKEN_MS = 2 * PROMPT_TOKEN_MS
STEP_MS = 40.0  # between two tokens of a stream, while no replica told


@dataclass(frozen=True, slots=True)
class WorkEstimate:
    """`cost` is None until a replica told; `row_limit` is what its steps hold."""

    cost: StepCost | None = None
    row_limit: int = 1

    def prefill_ms(self, waiting: Waiting) -> float:
        """Machine time of the prompt tokens that are not cached."""
        new = waiting.new_tokens
        if self.cost is None:
            return PROMPT_TOKEN_MS * new
        return self.cost.chunk_ms(new, waiting.prompt_tokens - new)

    def decode_ms(self, waiting: Waiting) -> float:
        """Of all its output, in steps that are full."""
        if self.cost is None:
            return OUTPUT_TOKEN_MS * waiting.expected_tokens
        token_ms = self.cost.decode_ms(self._context(waiting)) + self.cost.base_ms / max(1, self.row_limit)
        return token_ms * waiting.expected_tokens

    def prefill_us(self, waiting: Waiting) -> int:
        return round(1000 * self.prefill_ms(waiting))

    def work_us(self, waiting: Waiting) -> int:
        """Machine time of all of it."""
        return self.prefill_us(waiting) + round(1000 * self.decode_ms(waiting))

    def service_ms(self, waiting: Waiting, inflation: float, rows: float | None = None) -> float:
        """From its start to its last token, in steps of so many rows; None: of a full batch."""
        most = max(1, self.row_limit)
        rows = most if rows is None else min(max(1.0, rows), most)
        step_ms = STEP_MS
        if self.cost is not None:
            step_ms = self.cost.predict_ms(rows, 0, rows * self._context(waiting))
        steps = waiting.expected_tokens / waiting.choices
        return inflation * self.prefill_ms(waiting) + steps * step_ms

    def _context(self, waiting: Waiting) -> float:
        """KV tokens that one of its rows reads, on average."""
        return waiting.prompt_tokens + waiting.expected_tokens / waiting.choices / 2
