"""KV blocks that travel between replicas, named by their prefix keys. No torch here.

The receiver puts them into free blocks of its own and into its prefix cache; the row then finds them there as
any other hit. So a transferred prefix can give no other tokens than a cached one.
"""

from dataclasses import dataclass

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import Runner
from gpuworker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """The full blocks of a prompt, from its beginning: keys and contents, and how many of the prompt's tokens
    were not computed for it but found cached."""

    keys: list[bytes]
    blocks: list[bytes]
    cached_tokens: int


def blocks_export(kv: KVManager, runner: Runner, sequence: Sequence) -> PrefillResult:
    """Of a row that ended in this very step, so that its blocks hold what they held."""
    full = sequence.prompt_len // BLOCK_SIZE
    keys = kv.chain_keys(sequence, full)
    blocks = kv.pool.match(keys, sequence.token_ids[: full * BLOCK_SIZE])
    return PrefillResult(keys[: len(blocks)], runner.read_blocks(blocks), sequence.cached_tokens)


def blocks_import(kv: KVManager, runner: Runner, sequence: Sequence, prefilled: PrefillResult) -> None:
    """Before the row is submitted. Keys that this replica would not give the row's prompt are ignored, and
    blocks that do not fit beside running rows are left out: the row then computes more itself."""
    full = (sequence.prompt_len - 1) // BLOCK_SIZE
    keys = kv.chain_keys(sequence, full)
    usable = 0
    while usable < min(full, len(prefilled.keys), len(prefilled.blocks)):
        if prefilled.keys[usable] != keys[usable]:
            break
        usable += 1
    here = kv.pool.match(keys[:usable], sequence.token_ids[: usable * BLOCK_SIZE])
    held = len(here)
    wanted = range(held, usable)
    kv.pool.share(here)  # so that what comes does not evict what it continues
    if not wanted or len(wanted) > kv.pool.free_blocks:
        kv.pool.release(here)
        return
    blocks = kv.pool.allocate(len(wanted))
    try:
        runner.write_blocks(blocks, prefilled.blocks[held:usable])
    except ValueError:  # contents of another shape than this model's: worth nothing
        kv.pool.release(here + blocks)
        return
    for at, block in zip(wanted, blocks, strict=True):
        tokens = sequence.token_ids[at * BLOCK_SIZE : (at + 1) * BLOCK_SIZE]
        kv.pool.publish(block, keys[at], tokens, sequence.flow.tenant, at)
    kv.pool.release(here + blocks)
    cached = max(min(prefilled.cached_tokens, usable * BLOCK_SIZE), held * BLOCK_SIZE)
    sequence.computed_elsewhere = range(cached, usable * BLOCK_SIZE)
