"""Which replica runs the request at the head of a queue: by live KV headroom and pending prefill.

And who computes its prompt: long ones may go to a replica that does nothing else (DistServe, OSDI'24), from
where their KV moves to the replica that decodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from policy.step_cost import StepCost

# A replica with this many prompt tokens still to compute gets nothing more: what waits, waits where order
# is decided. Small enough that a fresh decision is made every step or two.
PREFILL_WINDOW_TOKENS = 256
# Blocks kept free for the growth of running rows, beside one block for each of them.
WATERMARK_BLOCKS = 2
# Below this, moving KV costs more than it spares: the decode replica computes the prompt in a step or two.
PREFILL_REMOTE_TOKENS = 512
# A prefill replica this far behind would make the request wait longer than its own replica.
PREFILL_BACKLOG_TOKENS = 16_384
# From here on a prompt belongs to the replicas labelled for it, if there are any with room.
LONG_PROMPT_TOKENS = 4_096


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as the dispatcher sees it: its last report plus what was placed on it since."""

    key: str
    rows: int  # each choice of a request is one
    max_rows: int
    max_tokens: int
    pending_prefill_tokens: int
    free_blocks: int
    block_size: int
    is_for_long_prompts: bool = False
    row_limit: int = 0  # rows that decode within the target latency; 0: not known
    cost: StepCost | None = None  # what its steps last; None: not known
    takes_more: bool = True  # not while it drains, is silent or said that it is full
    reported_ms: float = inf  # when; who leaves it out tells of a replica before every decision


@dataclass(frozen=True, slots=True)
class PrefillReplica:
    """`pending_tokens` are those of the prompts it was asked for that are not computed."""

    key: str
    pending_tokens: int
    max_tokens: int


def blocks_needed(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def has_room(replica: Replica, prompt_tokens: int, choices: int = 1) -> bool:
    """Whether the replica can begin this prompt within a step or two and hold it, and all its choices."""
    idle = replica.rows == 0
    growth = replica.rows + choices - 1 + WATERMARK_BLOCKS
    needed = blocks_needed(prompt_tokens + 1, replica.block_size) + growth
    return (
        replica.takes_more
        and replica.pending_prefill_tokens < PREFILL_WINDOW_TOKENS
        # An idle replica takes whatever it can serve: a prompt near the bound must not wait for ever.
        and (idle or replica.rows + choices <= replica.max_rows)
        and (idle or replica.free_blocks >= needed)
    )


def is_servable(replica: Replica, prompt_tokens: int) -> bool:
    """Whether this prompt plus one output token can ever run there."""
    return prompt_tokens + 1 <= replica.max_tokens


def placement_choose(replicas: Iterable[Replica], prompt_tokens: int, choices: int = 1) -> Replica | None:
    """Of those with room: one of the prompt's own pool, then the least prefill before this one, then the most
    free KV. None: stay in the queue."""
    is_long = prompt_tokens >= LONG_PROMPT_TOKENS

    def cost(replica: Replica) -> tuple[bool, int, int, str]:
        is_other_pool = replica.is_for_long_prompts != is_long
        return is_other_pool, replica.pending_prefill_tokens, -replica.free_blocks, replica.key

    fitting = (r for r in replicas if is_servable(r, prompt_tokens) and has_room(r, prompt_tokens, choices))
    return min(fitting, key=cost, default=None)


def prefill_choose(
    replicas: Iterable[PrefillReplica], prompt_tokens: int, cached_tokens: int
) -> PrefillReplica | None:
    """Who computes the prompt for the replica it was placed on; None: that one itself."""
    if prompt_tokens - cached_tokens < PREFILL_REMOTE_TOKENS:
        return None
    fitting = (
        r for r in replicas if prompt_tokens + 1 <= r.max_tokens and r.pending_tokens < PREFILL_BACKLOG_TOKENS
    )
    return min(fitting, key=lambda r: (r.pending_tokens, r.key), default=None)
