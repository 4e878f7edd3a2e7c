"""The simulation's time: a heap of what happens next, in whole microseconds, and a hash of what happened.

Two events of one microsecond happen in the order in which they were scheduled. No clock and no randomness of
its own, so one seed gives one history, and `EventLog.sha256` says whether two runs had the same.
"""

import struct
from collections.abc import Callable
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any

Handler = Callable[..., None]

_RECORD = struct.Struct("<qBqq")
_FLUSH_BYTES = 1 << 16


class Engine:
    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Handler, tuple[Any, ...]]] = []
        self._scheduled = 0

    @property
    def now_ms(self) -> float:
        return self.now_us / 1000

    def at(self, time_us: int, handler: Handler, *arguments: Any) -> None:
        """Raises ValueError for a moment that is over."""
        if time_us < self.now_us:
            raise ValueError(f"{time_us} µs is over: it is {self.now_us} µs")
        self._scheduled += 1
        heappush(self._heap, (time_us, self._scheduled, handler, arguments))

    def run(self, until_us: int) -> None:
        """Everything up to and at `until_us`; what comes later stays scheduled."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            self.now_us, _, handler, arguments = heappop(heap)
            handler(*arguments)
        self.now_us = until_us

    @property
    def is_idle(self) -> bool:
        return not self._heap


class EventLog:
    """Every decision as one record of 25 bytes: when, what, about whom, and one number more."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._buffer = bytearray()
        self.records = 0

    def add(self, time_us: int, kind: int, subject: int, detail: int = 0) -> None:
        self._buffer += _RECORD.pack(time_us, kind, subject, detail)
        self.records += 1
        if len(self._buffer) >= _FLUSH_BYTES:
            self._flush()

    @property
    def sha256(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update(self._buffer)
        self._buffer.clear()
