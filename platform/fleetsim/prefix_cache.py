"""Which prompt prefixes a replica holds in the KV that no row uses: least recently used ones go first."""

from collections import OrderedDict

from fleetsim.arrival import PREFIX_TOKENS


class PrefixCache:
    """Ids stand for full blocks of PREFIX_TOKENS with all that comes before them, so a prompt's hit ends at
    the first id that is not held. Blocks that live rows share are counted with the rows, not here."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._came: dict[int, None] = {}
        self._went: dict[int, None] = {}

    @property
    def tokens(self) -> int:
        return len(self._blocks) * PREFIX_TOKENS

    def match(self, prefix: tuple[int, ...], most_tokens: int) -> int:
        """Tokens at the prompt's beginning that need not be computed: whole blocks, `most_tokens` at most."""
        blocks = 0
        for block in prefix[: most_tokens // PREFIX_TOKENS]:
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            blocks += 1
        return blocks * PREFIX_TOKENS

    def add(self, prefix: tuple[int, ...]) -> None:
        for block in reversed(prefix):  # the beginning is the most shared: it goes last
            if block not in self._blocks:
                self._tell(block, self._came, self._went)
            self._blocks[block] = None
            self._blocks.move_to_end(block)

    def shrink(self, most_tokens: int) -> None:
        while self._blocks and self.tokens > most_tokens:
            self._tell(self._blocks.popitem(last=False)[0], self._went, self._came)

    def take_events(self) -> tuple[list[int], list[int]]:
        """Blocks that came and went since the last call."""
        events = list(self._came), list(self._went)
        self._came, self._went = {}, {}
        return events

    def _tell(self, block: int, now: dict[int, None], not_now: dict[int, None]) -> None:
        if block in not_now:  # nobody heard of that
            del not_now[block]
        else:
            now[block] = None
