"""Which prompt prefixes a replica holds, as it says itself, and how much of a prompt that spares it."""

from collections.abc import Iterable, Iterator

from gpuworker.wire.messages import Report, Submit, unpack_ids
from policy.prefix import BLOCK_TOKENS, ROUTER_STRIDE, prefix_next, prefix_root


class PrefixIndex:
    """Names of one replica's cached blocks; of every chain it knows one link in `ROUTER_STRIDE`."""

    def __init__(self, secret: bytes, digest: str, kv_dtype: str) -> None:
        self._secret = secret
        self._digest = digest
        self._kv_dtype = kv_dtype  # "" when the replica keeps no prefixes
        self._held: set[bytes] = set()

    @property
    def weights(self) -> tuple[str, str]:
        """Replicas with the same name a prefix alike."""
        return self._digest, self._kv_dtype

    def reported(self, report: Report) -> None:
        if report.cache_reset:
            self._held.clear()
        self._held.difference_update(report.evicted)
        self._held.update(report.cached)

    @property
    def is_empty(self) -> bool:
        return not (self._held and self._kv_dtype)

    def __contains__(self, name: bytes) -> bool:
        return name in self._held

    def cached_tokens(self, submit: Submit) -> int:
        """A lower bound of the prompt tokens that need not be computed there."""
        return cached_tokens_most([self], submit)

    def names(self, submit: Submit) -> Iterator[tuple[int, bytes]]:
        """Of the prompt's prefixes that replicas tell of: how many tokens, and the name. Shortest first."""
        ids = unpack_ids(submit.prompt)
        key = prefix_root(self._secret, submit.tenant, self._digest, "", self._kv_dtype, submit.cache_salt)
        for number, first in enumerate(range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS), start=1):
            key = prefix_next(key, ids[first : first + BLOCK_TOKENS])
            if number % ROUTER_STRIDE == 0:
                yield number * BLOCK_TOKENS, key


def cached_tokens_most(indexes: Iterable[PrefixIndex], submit: Submit) -> int:
    """Of the one that spares most. Names are made once for all, and no further than somebody holds them."""
    alike: dict[tuple[str, str], list[PrefixIndex]] = {}
    for index in indexes:
        if not index.is_empty:
            alike.setdefault(index.weights, []).append(index)
    most = 0
    for holders in alike.values():
        for tokens, name in holders[0].names(submit):
            holders = [index for index in holders if name in index]
            if not holders:
                break
            most = max(most, tokens)
    return most
