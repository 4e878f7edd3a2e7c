"""Who is turned away while a queue stands: DAGOR's admission level (Zhou et al., SoCC 2018).

Every request has a level: how far its flow is over its share, then a bucket of its tenant that changes
every hour, so that a tenant is let in or not as a whole, and not always the same. Each second the number
admitted is lowered by 5 % while overloaded, raised by 1 % otherwise, and turned into the highest level that
gets in by what the levels of the last second's requests were. Ours is a second line behind admission by work:
when nothing was overloaded for as long as that takes to learn a new rate, everybody gets in again.
"""

from itertools import accumulate
from math import log2
from zlib import crc32

SHARE_BUCKETS, TENANT_BUCKETS = 8, 128
LEVELS = SHARE_BUCKETS * TENANT_BUCKETS
WINDOW_MS = 1_000.0
DOWN, UP = 0.95, 1.01
OPEN_AFTER_MS = 5_000.0
HOUR_MS = 3_600_000


def share_bucket(demand: float, part: float) -> int:
    """0 within its part of the capacity, then one for each doubling beyond."""
    if demand <= part:
        return 0
    return min(SHARE_BUCKETS - 1, 1 + int(log2(demand / part))) if part > 0 else SHARE_BUCKETS - 1


def priority_level(tenant: str, bucket: int, now_ms: float) -> int:
    """0 to LEVELS - 1: the lowest gets in for longest. A checksum, not `hash`, so that processes agree."""
    hour = int(now_ms // HOUR_MS)
    return bucket * TENANT_BUCKETS + crc32(f"{hour} {tenant}".encode()) % TENANT_BUCKETS


class PriorityCutoff:
    def __init__(self, now_ms: float) -> None:
        self.cutoff = LEVELS - 1  # the highest level that gets in
        self._asked = [0] * LEVELS  # requests of the window, by level
        self._admitted = 0
        self._until_ms = now_ms + WINDOW_MS
        self._open_ms = now_ms  # from when on everybody gets in

    def admits(self, level: int) -> bool:
        return level <= self.cutoff

    def asked(self, level: int, *, admitted: bool) -> None:
        """A request was admitted, or refused for whatever reason."""
        self._asked[level] += 1
        self._admitted += admitted

    def tick(self, now_ms: float, *, is_overloaded: bool) -> None:
        if is_overloaded:
            self._open_ms = now_ms + OPEN_AFTER_MS
        if now_ms < self._until_ms:
            return
        self._until_ms = now_ms + WINDOW_MS
        if now_ms >= self._open_ms:
            self.cutoff = LEVELS - 1
        else:
            # Rounded up when it rises, or a small number would never get anywhere.
            target = int(self._admitted * DOWN) if is_overloaded else int(self._admitted * UP) + 1
            counts = accumulate(self._asked)
            self.cutoff = max((level for level, count in enumerate(counts) if count <= target), default=0)
        self._asked = [0] * LEVELS
        self._admitted = 0
