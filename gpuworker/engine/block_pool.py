"""KV blocks: who holds which, counted by references. All blocks exist from the start; none is ever created.

A block is referenced by rows, or free. A free block is blank, or still holds a published prefix
(see `cached_blocks`): blank ones are handed out first, then cached ones in their order of eviction. A row's
blocks are released last block first, so that the beginning of a sequence survives longest. No torch here.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from gpuworker.engine.cached_blocks import CachedBlock, CachedBlocks, CacheEvents
from gpuworker.wire.messages import pack_ids
from policy.prefix import BLOCK_TOKENS

BLOCK_SIZE = BLOCK_TOKENS


class PoolExhausted(Exception):
    """More blocks were asked for than are free. Nothing was taken."""


class PoolCorrupt(Exception):
    """Reference counts, block tables or prefix keys disagree: a defect of the engine."""


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


class BlockPool:
    """`owner_share`: the part of the pool that one owner's unreferenced cached blocks may take before they
    are evicted ahead of everybody else's. While nothing has to be evicted an owner may have it all."""

    def __init__(self, blocks: int, *, owner_share: float = 0.5) -> None:
        if blocks <= 0:
            raise ValueError(f"a pool of {blocks} blocks holds nothing")
        if not 0 <= owner_share <= 1:
            raise ValueError(f"owner_share is {owner_share}, not between 0 and 1")
        self.blocks = blocks
        self._references = [0] * blocks
        self._blank: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._cached = CachedBlocks(int(owner_share * blocks))

    @property
    def free_blocks(self) -> int:
        """Cached blocks that nobody refers to are free: they are evicted when needed."""
        return len(self._blank) + self._cached.idle

    @property
    def cached_blocks(self) -> int:
        """Published blocks, referenced or not."""
        return len(self._cached)

    @property
    def collisions(self) -> int:
        """How often a prefix key stood for other ids than those asked for. Anything but 0 is an attack or a
        defect; it cost a hit, nothing else."""
        return self._cached.collisions

    def references(self, block: int) -> int:
        return self._references[block]

    def is_writable(self, block: int) -> bool:
        """Whether its only owner may write into it: others rely on what a published block holds."""
        return self._references[block] == 1 and block not in self._cached

    # -- owners -------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """The caller owns one reference to each block returned, and gives it back with `release`."""
        if count > self.free_blocks:
            raise PoolExhausted(f"{count} blocks wanted, {self.free_blocks} free")
        taken = [
            self._blank.popitem(last=False)[0] if self._blank else self._cached.evict() for _ in range(count)
        ]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Another owner of blocks held or cached. Raises PoolCorrupt for blank ones: nothing is taken."""
        blocks = list(blocks)
        if blank := [block for block in blocks if block in self._blank]:
            raise PoolCorrupt(f"blocks {blank} hold nothing to share")
        for block in blocks:
            if not self._references[block]:
                self._cached.wake(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One owner less of each. `blocks` in the order of the sequence: the last is evicted first."""
        for block in reversed(blocks):
            if not self._references[block]:
                raise PoolCorrupt(f"block {block} was released more often than taken")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._cached:
                self._cached.rest(block)
            else:
                self._blank[block] = None

    # -- prefix cache -------------------------------------------------------------------------------------

    def publish(self, block: int, key: bytes, tokens: Sequence[int], owner: str, depth: int) -> None:
        """A held block is full and computed: from now on `match` finds it, until it is evicted.

        `key` is its link of the chain of `policy.prefix`, `depth` its place in the chain (0 is the first).
        Nothing happens when a block has the key already: two blocks of the same content are not merged, so
        that block tables are never rewritten; the second stays private.
        """
        if not self._references[block]:
            raise PoolCorrupt(f"block {block} was published by nobody")
        if len(tokens) != BLOCK_SIZE:
            raise PoolCorrupt(f"block {block} was published with {len(tokens)} tokens")
        if block in self._cached:
            if not self._cached.has_key(block, key):
                raise PoolCorrupt(f"block {block} was published under two keys")
            return
        self._cached.add(block, CachedBlock(key, pack_ids(list(tokens)), owner, depth))

    def match(self, keys: Sequence[bytes], tokens: Sequence[int]) -> list[int]:
        """The longest run of published blocks from the first key on. Takes no reference: `share` does.

        `tokens` are the ids of all those blocks in order; a block that holds others ends the run.
        Raises ValueError when they are too few.
        """
        return self._cached.match(keys, tokens)

    def take_events(self) -> CacheEvents:
        """What the router should hear of since the last call."""
        return self._cached.take_events()

    def published_keys(self) -> list[bytes]:
        """All the router should know, for one that knows nothing. Events not yet taken are part of it."""
        return self._cached.published_keys()

    def clear_cache(self) -> None:
        """No prefix is found any more. Rows keep their blocks."""
        for block in self._cached.clear():
            self._blank[block] = None

    # -- idle moments -------------------------------------------------------------------------------------

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """References equal table entries; a block is either referenced, or blank, or cached and idle; every
        key leads to a full block that knows it; owners' counts are right. Raises PoolCorrupt."""
        entries = Counter(block for table in tables for block in table)
        for block, references in enumerate(self._references):
            if references != entries[block]:
                raise PoolCorrupt(f"block {block}: {references} references, {entries[block]} entries")
            if (references > 0) + (block in self._blank) + self._cached.is_idle(block) != 1:
                raise PoolCorrupt(f"block {block} is both free and referenced, or neither")
            if block in self._blank and block in self._cached:
                raise PoolCorrupt(f"block {block} is blank and has a key")
        if faults := self._cached.faults(references > 0 for references in self._references):
            raise PoolCorrupt("; ".join(faults))
