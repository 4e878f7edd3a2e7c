"""A runner without a model: every row echoes its own prompt, over and over.

For tests of everything around the model, with the real scheduler and detokenizer. No torch here.
"""

import time

from gpuworker.engine.plan import StepPlan

ANY_VOCABULARY = 1 << 31


class ScriptedRunner:
    """The token at position p of a row is `prompt[(p - len(prompt)) % len(prompt)]`."""

    def __init__(self, *, step_ms: float = 0.0, vocab_size: int = ANY_VOCABULARY) -> None:
        self.vocab_size = vocab_size
        self._step_ms = step_ms
        self._prompts: dict[int, list[int]] = {}  # by slot

    def run(self, plan: StepPlan) -> list[int]:
        if self._step_ms:
            time.sleep(self._step_ms / 1000)
        for start in plan.starts:
            self._prompts[start.slot] = start.prompt
        sampled = []
        for row in plan.rows:
            prompt = self._prompts[row.slot]
            position = row.start + len(row.tokens)
            sampled.append(prompt[(position - len(prompt)) % len(prompt)] if row.sample else -1)
        return sampled
