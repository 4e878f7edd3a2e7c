"""A prompt of token ids as text, for upstreams that tokenise themselves."""

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from gpuworker.backends.external.answer import Unsayable


class PromptText:
    """What the tokenizer itself puts before every text is left out: the upstream's puts it there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = tokenizer.encode("").ids
        added = tokenizer.get_added_tokens_decoder()
        special = {identity: token.content for identity, token in added.items() if token.special}
        self._special_ids = frozenset(special)
        spellings = sorted(filter(None, special.values()), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")

    def say(self, ids: Sequence[int]) -> str:
        """Raises Unsayable for a prompt in which a control token is spelled out in plain text: the upstream
        would take it for the control token."""
        rest = ids[len(self._before) :] if list(ids[: len(self._before)]) == self._before else ids
        text: str = self._tokenizer.decode(list(rest), skip_special_tokens=False)
        controls = sum(1 for token in rest if token in self._special_ids)
        if sum(1 for _ in self._spelled.finditer(text)) != controls:
            raise Unsayable(
                "the prompt spells a control token, which this model's replicas cannot tell from one"
            )
        return text
