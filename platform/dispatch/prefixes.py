"""Names of a prompt's prefixes as one replica's KV has them, and what it says it holds."""

from collections.abc import Iterable, Iterator

from gpuworker.wire.messages import Report, Submit
from policy.prefix import BLOCK_TOKENS, ROUTER_STRIDE, Chain, prefix_next, prefix_root
from policy.router_index import PrefixHolders


class PrefixIndex:
    """One replica's part of what is known of all that hold its version. Of every chain of names replicas tell
    one link in `ROUTER_STRIDE`."""

    def __init__(
        self, secret: bytes, digest: str, kv_dtype: str, replica: str, holders: PrefixHolders
    ) -> None:
        self._secret = secret
        self._digest = digest
        self._kv_dtype = kv_dtype  # "" when the replica keeps no prefixes
        self._replica = replica
        self._holders = holders
        if self.keeps_prefixes:
            holders.joined(replica)

    @property
    def weights(self) -> tuple[str, str]:
        """Replicas with the same name a prefix alike."""
        return self._digest, self._kv_dtype

    @property
    def keeps_prefixes(self) -> bool:
        return bool(self._kv_dtype and self._secret)

    @property
    def has_secret(self) -> bool:
        return bool(self._secret)

    def reported(self, report: Report) -> None:
        if self.keeps_prefixes and (report.cached or report.evicted or report.cache_reset):
            self._holders.reported(self._replica, report.cached, report.evicted, is_reset=report.cache_reset)

    def gone(self) -> None:
        self._holders.gone(self._replica)

    def cached_tokens(self, submit: Submit) -> int:
        """A lower bound of the prompt tokens that need not be computed there."""
        if not self.keeps_prefixes:
            return 0
        return self._holders.reported_tokens(self._replica, self.chain(submit))

    def chain(self, submit: Submit) -> Chain:
        """Of this prompt's prefixes. There must be a secret."""
        return Chain(self._names(submit))

    def _names(self, submit: Submit) -> Iterator[bytes]:
        # As it is: a chain lives as long as its request waits, and few names of it are ever made.
        ids = memoryview(submit.prompt)[: len(submit.prompt) // 4 * 4].cast("I")
        key = prefix_root(self._secret, submit.tenant, self._digest, "", self._kv_dtype, submit.cache_salt)
        for number, first in enumerate(range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS), start=1):
            key = prefix_next(key, ids[first : first + BLOCK_TOKENS])
            if number % ROUTER_STRIDE == 0:
                yield key


def chains_of(indexes: Iterable[PrefixIndex], submit: Submit) -> tuple[Chain, ...]:
    """One chain for each kind of KV that replicas keep. Those that say of none have one too: it leads what
    begins alike to the same. None for a prompt whose KV is not looked for."""
    if submit.sampling.prompt_logprobs >= 0:
        return ()
    kinds = {index.weights: index for index in indexes if index.has_secret}
    return tuple(index.chain(submit) for index in kinds.values())
