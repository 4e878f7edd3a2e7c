"""What a request gives up while its model is under pressure, so that it is served: fixed when it is admitted.

The dispatcher says the level (policy.ladder); what it means for a request that comes in is decided here.
"""

from dataclasses import dataclass, field, replace

from gateway.dialects.base import Ask
from gateway.generation import Generation
from gateway.http.exchange import HeaderList
from gateway.runtime import Gateway
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant

SHORTER_OUTPUT = 3  # from this level on, and of one choice
SMALLER_MODEL = 4
# Of the smaller model, about a request that the one that was asked for may well take.
DOES_NOT_FIT = ("context_length_exceeded", "output_limit_exceeded", "invalid_value", "overloaded")

_SHORTER = "max_tokens"
_ONE_CHOICE = "n"


@dataclass(slots=True)
class Degradation:
    """`measures` are those that took effect: model, n, max_tokens."""

    level: int
    measures: list[str] = field(default_factory=list)
    served: str = ""  # the model, where it is another than the one that was asked for

    @classmethod
    def to(cls, smaller: ModelRoute, level: int) -> "Degradation":
        return cls(level, ["model"], smaller.slug)

    @property
    def is_shortened(self) -> bool:
        return _SHORTER in self.measures

    def headers(self) -> HeaderList:
        if not self.measures:
            return []
        told: HeaderList = [(b"x-degraded", ", ".join(self.measures).encode())]
        if self.served:
            told.append((b"x-model-served", self.served.encode()))
        return told


def smaller_route(gateway: Gateway, grant: KeyGrant, route: ModelRoute, level: int) -> ModelRoute | None:
    """For tenants that accept one, and whose key may use it; it bills at its own price."""
    smaller = gateway.snapshot().routes.get(route.smaller)
    if level < SMALLER_MODEL or not grant.accepts_smaller_model or smaller is None:
        return None
    may_use = grant.models is None or smaller.slug in grant.models
    is_served = any(replica.digest == smaller.digest for replica in gateway.upstream.replicas.ready())
    is_pressed = gateway.upstream.pressure.level(smaller.digest) >= SMALLER_MODEL
    return smaller if may_use and is_served and not is_pressed else None


def choices_drop(ask: Ask, degradation: Degradation) -> Ask:
    """One choice of each prompt, whatever was asked for: each of the others takes a whole answer's time."""
    if degradation.level < SHORTER_OUTPUT or ask.generation.n == 1:
        return ask
    degradation.measures.append(_ONE_CHOICE)
    return replace(ask, generation=replace(ask.generation, n=1))


def output_shorten(
    gateway: Gateway,
    grant: KeyGrant,
    route: ModelRoute,
    generation: Generation,
    max_tokens: list[int],
    degradation: Degradation,
) -> list[int]:
    """To what three quarters of the tenant's answers need; the rest end with `length`."""
    if degradation.level < SHORTER_OUTPUT:
        return max_tokens
    least = generation.sampling.min_tokens
    shortened = [
        min(most, max(least, gateway.quotas.expected_tokens(grant.tenant_id, route.slug, most)))
        for most in max_tokens
    ]
    if shortened != max_tokens:
        degradation.measures.append(_SHORTER)
    return shortened
