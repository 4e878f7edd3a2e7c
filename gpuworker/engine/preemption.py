"""How a preempted row gets its KV back: computed again or from host memory, whichever seems cheaper."""

from collections.abc import Callable
from typing import Literal

from gpuworker.engine.block_pool import blocks_for
from policy.pacing import StepCost

RecoveryMode = Literal["auto", "recompute", "swap"]
UNMEASURED_BLOCK_MS = 0.5  # one block, one way
SMOOTHING = 0.2


class Recovery:
    """Learns what moving a block costs; what computing a token costs the pacer knows."""

    def __init__(self, cost: Callable[[], StepCost], mode: RecoveryMode = "auto") -> None:
        self._cost = cost
        self._mode = mode
        self.block_ms = UNMEASURED_BLOCK_MS

    def observe(self, blocks: int, took_ms: float) -> None:
        """`blocks` were moved between device and host."""
        if blocks:
            self.block_ms += SMOOTHING * (took_ms / blocks - self.block_ms)

    def prefers_swap(self, computed_tokens: int) -> bool:
        if self._mode != "auto":
            return self._mode == "swap"
        there_and_back_ms = 2 * blocks_for(computed_tokens) * self.block_ms
        return there_and_back_ms < self._cost().chunk_ms(computed_tokens, start=0)
