"""Where a prompt that nobody is known to hold belongs: consistent hashing with bounded loads.

The same beginning leads to the same replica, though nothing was reported, as long as that one is not loaded
much more than the others (Mirrokni, Thorup and Zadimoghaddam, SODA 2018). Changes of the fleet move few.
"""

from bisect import bisect, insort
from collections.abc import Hashable, Iterator
from hashlib import blake2b

POINTS = 32  # of each replica
LOAD_FACTOR = 1.25  # of the mean load that a replica may have and still be the one


class Ring:
    def __init__(self) -> None:
        self._points: list[tuple[int, str]] = []

    def add(self, key: str) -> None:
        """One that is not here yet."""
        for number in range(POINTS):
            insort(self._points, (_place(f"{key}/{number}"), key))

    def discard(self, key: str) -> None:
        self._points = [point for point in self._points if point[1] != key]

    def walk(self, name: Hashable) -> Iterator[str]:
        """Every replica once, the one that the name belongs to first."""
        points = self._points
        start, seen = bisect(points, (_place(repr(name)),)), set()
        for number in range(start, start + len(points)):
            key = points[number % len(points)][1]
            if key not in seen:
                seen.add(key)
                yield key


def _place(name: str) -> int:
    """The same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
