"""All or nothing: one request takes its amount of every limit, or nothing of any.

The limits are leases (`policy.lease`) or, while the store is down, local shares (`policy.local_share`). Pure;
the caller asks the store where something is short.
"""

from collections.abc import Sequence
from typing import Protocol


class Source(Protocol):
    def has(self, amount: int, now_ms: int) -> bool: ...

    def take(self, amount: int, now_ms: int) -> bool: ...


def reserve_all(sources: Sequence[Source], amounts: Sequence[int], now_ms: int) -> bool:
    """Takes `amounts[i]` of `sources[i]` (all different) for every i, or nothing. Whether it was taken."""
    pairs = list(zip(sources, amounts, strict=True))
    if not all(source.has(amount, now_ms) for source, amount in pairs):
        return False
    for source, amount in pairs:
        source.take(amount, now_ms)
    return True
