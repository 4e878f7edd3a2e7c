"""All or nothing: one request takes its amount of every limit, or nothing of any.

The limits are leases (`policy.lease`) or, while the store is down, local shares (`policy.local_share`). Pure;
the caller asks the store where this says that something is short.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Source(Protocol):
    cap: int

    def has(self, amount: int, now_ms: int) -> bool: ...

    def take(self, amount: int, now_ms: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Lacking:
    """Why nothing was taken: positions in the sequence that was asked."""

    never: tuple[int, ...]  # the whole limit has no room for the amount, however long one waits
    short: tuple[int, ...]  # there is too little here now


def reserve_all(sources: Sequence[Source], amounts: Sequence[int], now_ms: int) -> Lacking | None:
    """Takes `amounts[i]` of `sources[i]` (all different) for every i, or nothing. None: taken."""
    pairs = list(zip(sources, amounts, strict=True))
    if all(source.has(amount, now_ms) for source, amount in pairs):
        for source, amount in pairs:
            source.take(amount, now_ms)
        return None
    return Lacking(
        never=tuple(at for at, (source, amount) in enumerate(pairs) if amount > source.cap),
        short=tuple(at for at, (source, amount) in enumerate(pairs) if not source.has(amount, now_ms)),
    )
