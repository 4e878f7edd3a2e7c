"""What a trial needs of a model, and a runner that keeps what was sampled."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bench.fuzz.engine_requests import Vocabulary
from gpuworker.engine.plan import Moves, Runner, Sampled, SequenceKey, StepPlan
from gpuworker.wire.messages import RowKey


@dataclass(frozen=True)
class Model:
    """What a trial needs of a model. `runner_make(blocks, host_blocks, max_rows)`."""

    tokenizer_path: Path
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    eos_ids: frozenset[int]
    runner_make: Callable[[int, int, int], Runner]
    max_context_tokens: int
    longest_output: int
    requests: int  # in one trial, at most


class WatchedRunner:
    """Keeps what was sampled, and fails for rows that are to be bad."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.bad: set[RowKey] = set()
        self.ids: dict[SequenceKey, dict[int, int]] = {}  # token by position

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    def move(self, moves: Moves) -> None:
        self._runner.move(moves)

    def run(self, plan: StepPlan) -> list[Sampled]:
        if any(row.key.row in self.bad for row in plan.rows):
            raise ValueError("a row of this plan is bad")
        sampled = self._runner.run(plan)
        for row, result in zip(plan.rows, sampled, strict=True):
            if row.sample:
                self.ids.setdefault(row.key, {})[row.start + len(row.tokens)] = result.token
        return sampled

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return self._runner.read_blocks(blocks)

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        self._runner.write_blocks(blocks, contents)
