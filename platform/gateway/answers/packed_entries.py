"""Entries of an answer that are kept until its end as one msgpack array: a fifth of what the objects take."""

from gateway.token_log.entries import Entry, array_head, encode


class PackedEntries:
    """Holds at most `max_bytes`; what is longer is not kept."""

    __slots__ = ("_count", "_max_bytes", "_packed")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._packed = bytearray()
        self._count = 0

    def add(self, entry: Entry) -> None:
        if self._max_bytes:
            self._packed += encode(entry)
            self._count += 1
            if len(self._packed) > self._max_bytes:
                self._max_bytes = 0
                self._packed.clear()

    def ending_with(self, last: Entry) -> bytes | None:
        """All of them, for `entries_of`; None when they were too long."""
        if not self._max_bytes:
            return None
        return array_head(self._count + 1) + self._packed + encode(last)
