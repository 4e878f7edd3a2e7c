"""A small vocabulary in memory, for log probabilities: token i is the i-th spelling."""


class Vocabulary:
    def __init__(self, *spellings: bytes, special: frozenset[int] = frozenset()) -> None:
        self._spellings = spellings
        self._special = special

    def token_bytes(self, token: int) -> bytes:
        return self._spellings[token]

    def is_special(self, token: int) -> bool:
        return token in self._special


NO_TOKENS = Vocabulary()
