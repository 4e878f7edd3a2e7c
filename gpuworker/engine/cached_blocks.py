"""Which blocks hold a prefix that may be used again, and which of them goes first when room is needed.

A published block keeps its key until it is evicted, and only blocks that no row refers to are evicted: in the
order in which they were released, except that owners with more than their share lose theirs before anybody
else. A block comes, goes or is found in O(1). No torch here.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpuworker.wire.messages import pack_ids
from policy.prefix import BLOCK_TOKENS, router_keeps

logger = logging.getLogger(__name__)

_BLOCK_BYTES = len(pack_ids([0] * BLOCK_TOKENS))


class CacheEvents(NamedTuple):
    """Links of the hash chain that came and went, as the router keeps them. No key is in both lists."""

    added: list[bytes]
    evicted: list[bytes]


class CachedBlock(NamedTuple):
    key: bytes
    content: bytes  # packed ids
    owner: str
    depth: int  # in its chain, 0 is the first


class CachedBlocks:
    """`ceiling` is how many unreferenced blocks one owner may keep before they are evicted first."""

    def __init__(self, ceiling: int) -> None:
        self.collisions = 0  # keys that came with other ids than those they stand for
        self._ceiling = ceiling
        self._entries: dict[int, CachedBlock] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # unreferenced, the first is evicted first
        self._idle_of: dict[str, OrderedDict[int, None]] = {}
        self._over: dict[str, None] = {}  # owners above the ceiling, in the order in which they got there
        self._added: dict[bytes, None] = {}
        self._evicted: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    @property
    def idle(self) -> int:
        return len(self._idle)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def add(self, block: int, entry: CachedBlock) -> None:
        """Of a block in use and without a key. Nothing happens when another block has this key already."""
        if (other := self._block_of.get(entry.key)) is not None:
            self._is_same(self._entries[other], entry.content)
            return
        self._entries[block] = entry
        self._block_of[entry.key] = block
        self._note(entry, self._evicted, self._added)

    def has_key(self, block: int, key: bytes) -> bool:
        return self._block_of.get(key) == block

    def match(self, keys: Sequence[bytes], tokens: Sequence[int]) -> list[int]:
        """The longest run of blocks, from the first key on, that hold these ids under these keys."""
        if len(tokens) < len(keys) * BLOCK_TOKENS:
            raise ValueError(f"{len(tokens)} ids do not fill {len(keys)} blocks")
        blocks: list[int] = []
        for index, key in enumerate(keys):
            block = self._block_of.get(key)
            if block is None:
                break
            content = pack_ids(list(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]))
            if not self._is_same(self._entries[block], content):
                break
            blocks.append(block)
        return blocks

    def rest(self, block: int) -> None:
        """Nobody refers to the block any more: it is the last to go."""
        owner = self._entries[block].owner
        self._idle[block] = None
        of_owner = self._idle_of.setdefault(owner, OrderedDict())
        of_owner[block] = None
        if len(of_owner) > self._ceiling:
            self._over[owner] = None

    def wake(self, block: int) -> None:
        """Somebody refers to an idle block again."""
        owner = self._entries[block].owner
        del self._idle[block]
        of_owner = self._idle_of[owner]
        del of_owner[block]
        if len(of_owner) <= self._ceiling:
            self._over.pop(owner, None)
        if not of_owner:
            del self._idle_of[owner]

    def evict(self) -> int:
        """An idle block, now without a key. There must be one."""
        order = self._idle_of[next(iter(self._over))] if self._over else self._idle
        block = next(iter(order))
        self.wake(block)
        self._forget(block)
        return block

    def clear(self) -> list[int]:
        """Forget every key; the blocks that were idle."""
        idle = list(self._idle)
        for block in idle:
            self.wake(block)
        for block in list(self._entries):
            self._forget(block)
        return idle

    def take_events(self) -> CacheEvents:
        events = CacheEvents(list(self._added), list(self._evicted))
        self._added, self._evicted = {}, {}
        return events

    def published_keys(self) -> list[bytes]:
        """All that the router should know. Later events are relative to this."""
        self.take_events()
        return [entry.key for entry in self._entries.values() if router_keeps(entry.depth)]

    def faults(self, referenced: Iterable[bool]) -> list[str]:
        """What contradicts itself. `referenced`: by block, whether a row refers to it."""
        found = []
        keys = {entry.key: block for block, entry in self._entries.items()}
        if keys != self._block_of or len(keys) != len(self._entries):
            found.append("keys and blocks disagree")
        for block, entry in self._entries.items():
            if len(entry.content) != _BLOCK_BYTES:
                found.append(f"block {block} has a key but is not full")
        idle = {block for block, is_used in enumerate(referenced) if block in self._entries and not is_used}
        if idle != set(self._idle):
            found.append(f"idle cached blocks {sorted(idle)}, listed {sorted(self._idle)}")
        of_owner = {owner: set(blocks) for owner, blocks in self._idle_of.items()}
        counts = Counter(self._entries[block].owner for block in idle)
        if any({self._entries[block].owner for block in blocks} != {o} for o, blocks in of_owner.items()):
            found.append("an owner is credited with another's block")
        if {owner: len(blocks) for owner, blocks in of_owner.items()} != counts:
            found.append("owners' counts are wrong")
        if set(self._over) != {owner for owner, count in counts.items() if count > self._ceiling}:
            found.append("owners above their share are wrong")
        return found

    def _forget(self, block: int) -> None:
        entry = self._entries.pop(block)
        del self._block_of[entry.key]
        self._note(entry, self._added, self._evicted)

    def _note(self, entry: CachedBlock, undone: dict[bytes, None], done: dict[bytes, None]) -> None:
        """What came and went between two reports is no news, nor is what went and came back."""
        if not router_keeps(entry.depth):
            return
        if entry.key in undone:
            del undone[entry.key]
        else:
            done[entry.key] = None

    def _is_same(self, held: CachedBlock, content: bytes) -> bool:
        if held.content == content:
            return True
        self.collisions += 1
        logger.warning("prefix key %s stands for other ids: not used", held.key.hex())
        return False
