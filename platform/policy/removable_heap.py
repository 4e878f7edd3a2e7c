"""A heap whose items can be removed in constant time, amortised: removed ones are skipped, then swept."""

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
SWEEP_SLACK = 16  # entries of removed items that are kept beyond as many as there are items


class _Entry(NamedTuple):
    rank: tuple[Any, ...]  # unique: comparing entries never reaches the key
    key: Hashable
    item: Any


class RemovableHeap(Generic[T]):
    """Items by rank, the smallest first. `rank` must be unique among the items of one heap."""

    __slots__ = ("_entries", "_live")

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._live: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._live

    def __iter__(self) -> Iterator[T]:
        """In no particular order."""
        return (entry.item for entry in self._live.values())

    @property
    def entries(self) -> int:
        """Those of removed items included: what it occupies."""
        return len(self._entries)

    def push(self, rank: tuple[Any, ...], key: Hashable, item: T) -> None:
        """A key that is there already gets a new rank and item."""
        entry = self._live[key] = _Entry(rank, key, item)
        heapq.heappush(self._entries, entry)
        self._sweep()

    def remove(self, key: Hashable) -> T | None:
        """None: it is not there."""
        entry = self._live.pop(key, None)
        if entry is None:
            return None
        self._sweep()
        item: T = entry.item
        return item

    def head(self) -> T | None:
        """The item of smallest rank, which stays; None: there is none."""
        entries, live = self._entries, self._live
        while entries:
            entry = entries[0]
            if live.get(entry.key) is entry:
                item: T = entry.item
                return item
            heapq.heappop(entries)
        return None

    def pop_until(self, rank: tuple[Any, ...]) -> list[T]:
        """Removes and returns the items whose rank is at most this one, smallest first."""
        found: list[T] = []
        while (item := self.head()) is not None and self._entries[0].rank <= rank:
            del self._live[heapq.heappop(self._entries).key]
            found.append(item)
        return found

    def _sweep(self) -> None:
        if len(self._entries) > 2 * len(self._live) + SWEEP_SLACK:
            self._entries = list(self._live.values())
            heapq.heapify(self._entries)
