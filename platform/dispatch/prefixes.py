"""Which prompt prefixes a replica holds, as it says itself, and how much of a prompt that spares it."""

from gpuworker.wire.messages import Report, Submit, unpack_ids
from policy.prefix import BLOCK_TOKENS, ROUTER_STRIDE, prefix_next, prefix_root


class PrefixIndex:
    """Names of one replica's cached blocks; of every chain it knows one link in `ROUTER_STRIDE`."""

    def __init__(self, secret: bytes, digest: str, kv_dtype: str) -> None:
        self._secret = secret
        self._digest = digest
        self._kv_dtype = kv_dtype  # "" when the replica keeps no prefixes
        self._held: set[bytes] = set()

    def reported(self, report: Report) -> None:
        if report.cache_reset:
            self._held.clear()
        self._held.difference_update(report.evicted)
        self._held.update(report.cached)

    def cached_tokens(self, submit: Submit) -> int:
        """A lower bound of the prompt tokens that need not be computed there."""
        if not self._held or not self._kv_dtype:
            return 0
        ids = unpack_ids(submit.prompt)
        key = prefix_root(self._secret, submit.tenant, self._digest, "", self._kv_dtype, submit.cache_salt)
        cached = 0
        for number, first in enumerate(range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS), start=1):
            key = prefix_next(key, ids[first : first + BLOCK_TOKENS])
            if number % ROUTER_STRIDE == 0:
                if key not in self._held:
                    break
                cached = number * BLOCK_TOKENS
        return cached
