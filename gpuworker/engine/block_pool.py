"""KV blocks: who holds which, counted by references. All blocks exist from the start; none is ever created.

The free list is also the order of reuse: a block freed first is handed out first, and a row's blocks are
freed last block first, so that the beginning of a sequence survives longest. No torch here.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

BLOCK_SIZE = 16  # tokens


class PoolExhausted(Exception):
    """More blocks were asked for than are free. Nothing was taken."""


class PoolCorrupt(Exception):
    """Reference counts and block tables disagree: a defect of the engine."""


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


class BlockPool:
    def __init__(self, blocks: int) -> None:
        if blocks <= 0:
            raise ValueError(f"a pool of {blocks} blocks holds nothing")
        self.blocks = blocks
        self._references = [0] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """The caller owns one reference to each block returned, and gives it back with `release`."""
        if count > len(self._free):
            raise PoolExhausted(f"{count} blocks wanted, {len(self._free)} free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Another owner of blocks that are free or held already."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            if not self._references[block]:
                raise PoolCorrupt(f"block {block} was released more often than taken")
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """References equal table entries, free and used blocks are all blocks, and no block is both."""
        entries = Counter(block for table in tables for block in table)
        for block in range(self.blocks):
            if self._references[block] != entries[block]:
                raise PoolCorrupt(
                    f"block {block}: {self._references[block]} references, {entries[block]} entries"
                )
            if (block in self._free) != (self._references[block] == 0):
                raise PoolCorrupt(f"block {block} is both free and referenced, or neither")
