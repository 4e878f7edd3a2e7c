"""How long an answer will be: the 75th percentile of a tenant's outputs of one model, learned as they end.

For quotas and admission, which must guess before a request runs; never for money, which reserves the worst
case. Pure, and bounded: the pairs that were used least recently are forgotten.
"""

from collections import OrderedDict
from collections.abc import Hashable

PERCENTILE = 0.75
STEP = 0.05  # of the estimate
SAMPLES = 20
MIN_TOKENS = 16
MAX_ENTRIES = 10_000


class OutputEstimates:
    """Keyed by tenant and model. Until 20 answers have ended, what the client allows is expected."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._estimates: OrderedDict[tuple[Hashable, str], _Percentile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._estimates)

    def expected(self, tenant: Hashable, model: str, max_tokens: int) -> int:
        """Output tokens of one answer, at most `max_tokens`."""
        estimate = self._estimates.get((tenant, model))
        if estimate is None or estimate.tokens is None:
            return max_tokens
        return min(max_tokens, max(MIN_TOKENS, round(estimate.tokens)))

    def is_known(self, tenant: Hashable, model: str) -> bool:
        """Whether `expected` says more than what the client allows."""
        estimate = self._estimates.get((tenant, model))
        return estimate is not None and estimate.tokens is not None

    def observe(self, tenant: Hashable, model: str, output_tokens: int) -> None:
        """An answer ended by itself."""
        key = (tenant, model)
        estimate = self._estimates.pop(key, None) or _Percentile()
        self._estimates[key] = estimate
        estimate.observe(output_tokens)
        if len(self._estimates) > self._max_entries:
            self._estimates.popitem(last=False)


class _Percentile:
    """The percentile of the first samples, then a step towards each next one."""

    __slots__ = ("_first", "tokens")

    def __init__(self) -> None:
        self._first: list[int] = []
        self.tokens: float | None = None

    def observe(self, tokens: int) -> None:
        if self.tokens is None:
            self._first.append(tokens)
            if len(self._first) == SAMPLES:
                self.tokens = float(max(MIN_TOKENS, sorted(self._first)[round(PERCENTILE * SAMPLES) - 1]))
                self._first = []
            return
        is_within = tokens <= self.tokens
        step = STEP * self.tokens * (PERCENTILE - is_within)
        self.tokens = max(float(MIN_TOKENS), self.tokens + step)
