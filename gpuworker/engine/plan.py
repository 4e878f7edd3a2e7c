"""The value the scheduler hands to a runner each step, and what comes back.

A plan holds no references to live objects: it can be logged, compared, replayed in part, or sent to another
process. Running the same plan twice has the effect of running it once; its moves are made once, before.
No torch here.
"""

from typing import NamedTuple, Protocol

import msgspec

from gpuworker.wire.messages import RowKey, Sampling, TokenLogprobs
from policy.step_cost import chunk_pairs


class SequenceKey(NamedTuple):
    """One choice of one request."""

    gateway: str
    sid: int
    choice: int = 0

    @property
    def row(self) -> RowKey:
        return RowKey(self.gateway, self.sid)


class RowStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row takes a slot: its first step, or its first since a preemption."""

    key: SequenceKey
    slot: int
    tokens: list[int]  # prompt and what was sampled so far
    prompt_len: int
    sampling: Sampling  # `seed` is the choice's own
    stop_ids: list[int]  # never sampled before `sampling.min_tokens` of output


class PlanRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compute `tokens` at positions `start`, `start + 1`, …; sample the token after them if `sample`.

    `new_blocks` are the row's block table from entry `block_offset` on.
    """

    key: SequenceKey
    slot: int
    start: int
    tokens: list[int]
    block_offset: int
    new_blocks: list[int]
    sample: bool


class Moves(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Whole blocks of KV, as pairs (from, to): made in this order, each kind wholly before the next."""

    to_host: list[tuple[int, int]] = []
    to_device: list[tuple[int, int]] = []
    copies: list[tuple[int, int]] = []  # device to device

    def __bool__(self) -> bool:
        return bool(self.to_host or self.to_device or self.copies)


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    rows: list[PlanRow]
    starts: list[RowStart] = []
    moves: Moves = Moves()
    masks: dict[int, bytes] = {}  # by slot: a bit for each vocabulary entry, lowest bit first; 1 is allowed

    @property
    def decode_rows(self) -> int:
        return sum(len(row.tokens) == 1 for row in self.rows)

    @property
    def prefill_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows if len(row.tokens) > 1)

    @property
    def prefill_pairs(self) -> int:
        """Pairs of a prompt token and a KV entry that it attends to."""
        return sum(chunk_pairs(len(row.tokens), row.start) for row in self.rows if len(row.tokens) > 1)

    @property
    def context_tokens(self) -> int:
        """KV entries that decoding rows read."""
        return sum(row.start + 1 for row in self.rows if len(row.tokens) == 1)


class Sampled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a plan row gave. `prompt` holds logprobs of the tokens at positions `start + 1`, …, as far as
    these belong to the prompt; empty unless the row asked for them."""

    token: int = -1  # -1: the row does not sample
    logprobs: TokenLogprobs | None = None
    prompt: list[TokenLogprobs] = []


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """By row, and for rows whose computation raised, the message."""

    rows: dict[SequenceKey, Sampled]
    failed: dict[SequenceKey, str]


class Runner(Protocol):
    """Computes plans. What `move` or the block transfers raise is fatal; `run` may raise for a bad row."""

    @property
    def vocab_size(self) -> int: ...

    def move(self, moves: Moves) -> None: ...

    def run(self, plan: StepPlan) -> list[Sampled]:
        """One for each plan row."""

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        """KV of whole device blocks, one value a block."""

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        """What `read_blocks` of a runner of the same model and KV dtype gave."""
