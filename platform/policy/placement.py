"""Which replica runs the request at the head of a queue: by live KV headroom and pending prefill."""

from collections.abc import Iterable
from dataclasses import dataclass

# A replica with this many prompt tokens still to compute gets nothing more: what waits, waits where order
# is decided. Small enough that a fresh decision is made every step or two.
PREFILL_WINDOW_TOKENS = 256
# Blocks kept free for the growth of running rows, beside one block for each of them.
WATERMARK_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as the dispatcher sees it: its last report plus what was placed on it since."""

    key: str
    rows: int
    max_rows: int
    max_tokens: int
    pending_prefill_tokens: int
    free_blocks: int
    block_size: int


def blocks_needed(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def has_room(replica: Replica, prompt_tokens: int) -> bool:
    """Whether the replica can begin this prompt within a step or two and hold it."""
    growth = replica.rows + WATERMARK_BLOCKS
    idle = replica.rows == 0
    return (
        replica.rows < replica.max_rows
        and replica.pending_prefill_tokens < PREFILL_WINDOW_TOKENS
        # An idle replica takes whatever it can serve: a prompt near the bound must not wait for ever.
        and (idle or replica.free_blocks >= blocks_needed(prompt_tokens + 1, replica.block_size) + growth)
    )


def is_servable(replica: Replica, prompt_tokens: int) -> bool:
    """Whether this prompt plus one output token can ever run there."""
    return prompt_tokens + 1 <= replica.max_tokens


def placement_choose(replicas: Iterable[Replica], prompt_tokens: int) -> Replica | None:
    """The replica with the least prefill before this one, then the most free KV; None: stay in the queue."""
    fitting = [r for r in replicas if is_servable(r, prompt_tokens) and has_room(r, prompt_tokens)]
    return min(fitting, key=lambda r: (r.pending_prefill_tokens, -r.free_blocks, r.key), default=None)
