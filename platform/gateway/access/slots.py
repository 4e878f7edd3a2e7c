"""How many requests are open, of the process and of each key: with a client, or outliving theirs."""

from collections import Counter
from uuid import UUID


class Slots:
    """`open` have a client; `alone` are generations whose client may come back for them."""

    def __init__(self) -> None:
        self.open = 0
        self.alone = 0
        self._open_by_key: Counter[UUID] = Counter()
        self._alone_by_key: Counter[UUID] = Counter()

    def open_of(self, key_id: UUID) -> int:
        return self._open_by_key[key_id]

    def running_of(self, key_id: UUID) -> int:
        """With those that nobody waits for at the moment."""
        return self._open_by_key[key_id] + self._alone_by_key[key_id]

    def take(self, key_id: UUID) -> None:
        self.open += 1
        self._open_by_key[key_id] += 1

    def release(self, key_id: UUID) -> None:
        self.open -= 1
        _decrement(self._open_by_key, key_id)

    def alone_take(self, key_id: UUID) -> None:
        self.alone += 1
        self._alone_by_key[key_id] += 1

    def alone_release(self, key_id: UUID) -> None:
        self.alone -= 1
        _decrement(self._alone_by_key, key_id)


def _decrement(counts: "Counter[UUID]", key_id: UUID) -> None:
    counts[key_id] -= 1
    if not counts[key_id]:
        del counts[key_id]
