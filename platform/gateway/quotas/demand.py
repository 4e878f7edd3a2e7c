"""What a request asks of its tenant's quotas, and what it really used. No state here."""

from dataclasses import dataclass

from billing.contracts import Price
from billing.pricing import cost_micro_usd
from tenants.contracts import KeyGrant

CACHED_PARTS = 10  # so many cached prompt tokens count as one


@dataclass(frozen=True, slots=True)
class Demand:
    """`max_tokens` is the output bound of all `answers` (prompts times choices) together; `klass` is
    interactive or batch. Without a price nothing is spent. `is_shortened`: `max_tokens` is what such answers
    are expected to need, so how long this one becomes says nothing about that."""

    grant: KeyGrant
    model: str
    prompt_tokens: int
    max_tokens: int
    klass: str
    price: Price | None
    requests: int = 1
    answers: int = 1
    is_shortened: bool = False

    @property
    def worst_micro_usd(self) -> int:
        """Whatever the cache and the model do."""
        if self.price is None:
            return 0
        fresh = cost_micro_usd(self.price, self.prompt_tokens, 0, self.max_tokens)
        cached = cost_micro_usd(self.price, 0, self.prompt_tokens, self.max_tokens)
        return max(fresh, cached)


@dataclass(frozen=True, slots=True)
class Used:
    """Of a request that ended, however."""

    tokens: int
    requests: int
    micro_usd: int

    @classmethod
    def of(cls, requests: int, prompt: int, cached: int, output: int, micro_usd: int) -> "Used":
        cached = min(cached, prompt)
        return cls(prompt - cached + -(-cached // CACHED_PARTS) + output, requests, micro_usd)


NOTHING = Used(0, 0, 0)
