"""How one model version's requests wait: every number of `ModelQueue` that an operator may change."""

from dataclasses import dataclass

from policy.placement import PREFILL_WINDOW_TOKENS


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Raises ValueError for what cannot be."""

    # -- placing
    window_tokens: int = PREFILL_WINDOW_TOKENS  # a replica with so many prompt tokens to compute gets no more
    over_part: float = 0.8  # of its max-min share, and of a replica's rows, that an over-share flow may hold
    hold_ms: float = 500  # a replica is kept for who is next and found no room on any for so long
    shares_ms: float = 50  # between two divisions of the fleet's rows, at most
    # -- turns
    batch_part: float = 0.1  # of machine time that batch gets while it wants some
    urgent_weight: float = 0.25  # of batch whose deadline is near, as a part of its weight
    ageing: float = 0.5  # what waiting is worth, as a part of fair service
    ageing_most_ms: float = 5_000  # of waiting that counts
    # -- admission
    admit_part: float = 0.9  # of the time left that a request may be expected to wait
    prefill_inflation: float = 2.0  # a prompt shares its steps with decodes
    queue_least: int = 64  # requests of a class that may wait whatever the drain rate
    queue_most: int = 20_000
    queue_unknown: int = 2_800  # while there is no replica
    queue_bytes: int = 256 << 20  # of queued prompts, at four bytes a token
    # -- guards
    codel_target_ms: float = 50
    codel_interval_ms: float = 500

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("over_part", "batch_part", "urgent_weight", "admit_part"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} is a part, not {getattr(self, name)}")
