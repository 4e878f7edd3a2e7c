"""Which replicas hold which prompt prefixes: what they reported, and what was sent to them since.

One map from a prefix's name to its holders, for all replicas of a model version. A report is exact; a prompt
that was sent somewhere is a guess that fades. The oldest names go first when there are too many.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from math import exp, inf

from policy.prefix import BLOCK_TOKENS, ROUTER_STRIDE, Chain

NAME_TOKENS = BLOCK_TOKENS * ROUTER_STRIDE  # that one more link of a chain stands for
MOST_NAMES = 262_144  # some 100 MB
FADE_MS = 120_000  # until a guess is worth 1/e of what it was
FORGOTTEN_MS = 5 * FADE_MS  # from here on it is worth nothing
_REPORTED = inf  # when a holder said so itself


class PrefixHolders:
    """Replicas by key. A slot is a replica since its cache was last emptied: what was known of it before then
    need not be looked for."""

    def __init__(self, most_names: int = MOST_NAMES) -> None:
        self._most_names = most_names
        self._entries: OrderedDict[Hashable, dict[int, float]] = OrderedDict()
        self._slots: dict[str, int] = {}
        self._keys: dict[int, str] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._entries)

    # -- what is told -------------------------------------------------------------------------------------

    def joined(self, key: str) -> None:
        """It keeps prefixes: what it is sent, it will hold."""
        self._slot(key)

    def reported(
        self, key: str, cached: Iterable[Hashable], evicted: Iterable[Hashable], *, is_reset: bool = False
    ) -> None:
        """Names that came and went; with `is_reset` `cached` is all there is."""
        if is_reset:
            self.gone(key)
        slot = self._slot(key)
        for name in evicted:
            if entry := self._entries.get(name):
                entry.pop(slot, None)
                if not entry:
                    del self._entries[name]
        for name in cached:
            self._note(name, slot, _REPORTED)

    def placed(self, key: str, chains: Iterable[Chain], now_ms: float) -> None:
        """A prompt was sent there. Of one that begins like none before, only the beginning is kept: most are
        never seen again, and names cost time to make."""
        slot = self._slots.get(key)
        if slot is None:  # it keeps none
            return
        for chain in chains:
            for depth, name in enumerate(chain):
                is_known = name in self._entries
                self._note(name, slot, now_ms)
                if not depth and not is_known:
                    break

    def gone(self, key: str) -> None:
        """It holds nothing any more."""
        if (slot := self._slots.pop(key, None)) is not None:
            del self._keys[slot]

    # -- what is asked ------------------------------------------------------------------------------------

    def hits(self, chains: Iterable[Chain], now_ms: float) -> dict[str, float]:
        """Tokens of the prompt that are expected to be found computed, of those that hold any."""
        found: dict[str, float] = {}
        for chain in chains:
            live, last, depth = set(self._keys), dict[int, float](), 0  # `last`: who holds the name before
            for name in chain:
                entry = self._entries.get(name, {})
                if not live <= entry.keys():
                    ends = live - entry.keys()
                    live -= ends
                    self._find(found, ends if depth else (), depth, last, now_ms)
                if not live:
                    break
                last, depth = entry, depth + 1
            self._find(found, live if depth else (), depth, last, now_ms)
        return found

    def most(self, chains: Iterable[Chain], now_ms: float) -> int:
        """Of the one that holds most."""
        return int(max(self.hits(chains, now_ms).values(), default=0))

    def reported_tokens(self, key: str, chain: Chain) -> int:
        """Tokens of the prompt that the replica said it holds."""
        slot, tokens = self._slots.get(key, -1), 0
        for name in chain:
            if self._entries.get(name, {}).get(slot) != _REPORTED:
                break
            tokens += NAME_TOKENS
        return tokens

    # -- inside -------------------------------------------------------------------------------------------

    def _find(
        self, found: dict[str, float], slots: Iterable[int], depth: int, last: dict[int, float], now_ms: float
    ) -> None:
        """So many names are held there, the last of them since the time that `last` says."""
        for slot in slots:
            key, tokens = self._keys[slot], depth * NAME_TOKENS * self._confidence(last[slot], now_ms)
            if tokens:
                found[key] = max(tokens, found.get(key, 0.0))

    def _confidence(self, since_ms: float, now_ms: float) -> float:
        if since_ms == _REPORTED:
            return 1.0
        age_ms = max(0.0, now_ms - since_ms)
        return exp(-age_ms / FADE_MS) if age_ms < FORGOTTEN_MS else 0.0

    def _slot(self, key: str) -> int:
        slot = self._slots.get(key)
        if slot is None:
            self._made += 1
            slot = self._slots[key] = self._made
            self._keys[slot] = key
        return slot

    def _note(self, name: Hashable, slot: int, since_ms: float) -> None:
        entry = self._entries.get(name)
        if entry is None:
            self._entries[name] = {slot: since_ms}
            if len(self._entries) > self._most_names:
                self._entries.popitem(last=False)
            return
        self._entries.move_to_end(name)
        if slot not in entry and len(entry) > len(self._keys):  # of replicas that are gone
            for old in entry.keys() - self._keys.keys():
                del entry[old]
        entry[slot] = max(since_ms, entry.get(slot, since_ms))
