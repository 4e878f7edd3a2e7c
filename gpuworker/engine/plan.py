"""The value the scheduler hands to a runner each step, and what comes back.

A plan holds no references to live objects: it can be logged, compared, replayed in part, or sent to another
process. Applying the same plan twice has the effect of applying it once. No torch here.
"""

from typing import Protocol

import msgspec

from gpuworker.wire.messages import RowKey, Sampling


class RowStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row takes a slot: its first step, or its first since a preemption."""

    key: RowKey
    slot: int
    prompt: list[int]
    sampling: Sampling


class PlanRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compute `tokens` at positions `start`, `start + 1`, …; sample the token after them if `sample`.

    `new_blocks` extend the row's block table from entry `block_offset` on.
    """

    key: RowKey
    slot: int
    start: int
    tokens: list[int]
    block_offset: int
    new_blocks: list[int]
    sample: bool


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    rows: list[PlanRow]
    starts: list[RowStart]

    @property
    def decode_rows(self) -> int:
        return sum(len(row.tokens) == 1 for row in self.rows)

    @property
    def prefill_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows if len(row.tokens) > 1)


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """Sampled ids, and for rows whose computation raised, the message."""

    tokens: dict[RowKey, int]
    failed: dict[RowKey, str]


class Runner(Protocol):
    """Computes plans. `run` returns one id per plan row, -1 for rows that do not sample."""

    @property
    def vocab_size(self) -> int: ...

    def run(self, plan: StepPlan) -> list[int]: ...
