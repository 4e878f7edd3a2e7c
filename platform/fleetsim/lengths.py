"""How long prompts and answers are, in tokens: one number, or lognormal within bounds."""

from math import log, sqrt
from random import Random
from typing import Annotated

from msgspec import Meta, Struct

Tokens = Annotated[int, Meta(ge=1, le=1_000_000)]


class Lognormal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mean` and `cv` (standard deviation over mean) are those before the bounds."""

    mean: Annotated[float, Meta(gt=0, le=1_000_000)]
    cv: Annotated[float, Meta(gt=0, le=10)]
    least: Tokens = 1
    most: Tokens = 8192

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"`least` ({self.least}) is above `most` ({self.most})")


Length = Tokens | Lognormal
PROMPTS = Lognormal(mean=1000, cv=0.8, least=16, most=8192)
ANSWERS = Lognormal(mean=309, cv=0.8, least=8, most=2048)


def draw(length: int | Lognormal, rng: Random) -> int:
    """Tokens; a fixed length takes nothing from `rng`."""
    if isinstance(length, int):
        return length
    variance = log(1 + length.cv * length.cv)
    tokens = int(rng.lognormvariate(log(length.mean) - variance / 2, sqrt(variance)))
    return max(length.least, min(length.most, tokens))
