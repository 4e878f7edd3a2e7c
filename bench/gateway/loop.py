"""An epoll loop with timers for peers that must cost little: no task, no future, one call per socket."""

import heapq
import itertools
import select
import time
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
_MAX_READY = 512


class BenchFailed(Exception):
    """What was measured did not do what it should; the message is one line."""


class Loop:
    """Times are `time.monotonic` seconds. Within a millisecond of a timer it spins: epoll counts in those."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def add(self, fd: int, handler: Callable[[int], None], events: int = READ) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def call_at(self, at: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (at, next(self._numbers), callback))

    def every(self, interval_s: float, callback: Callable[[], None]) -> None:
        """For as long as the loop lives."""

        def again() -> None:
            callback()
            self.call_at(time.monotonic() + interval_s, again)

        self.call_at(time.monotonic() + interval_s, again)

    def run_until(self, is_done: Callable[[], bool], *, within_s: float, what: str) -> None:
        """Raises BenchFailed when `what` is not done in that time."""
        latest = time.monotonic() + within_s
        while not is_done():
            if time.monotonic() > latest:
                raise BenchFailed(f"{what}: not done within {within_s:g} s")
            self._turn(latest)

    def run_for(self, seconds: float) -> None:
        latest = time.monotonic() + seconds
        while time.monotonic() < latest:
            self._turn(latest)

    def _turn(self, latest: float) -> None:
        timers, now = self._timers, time.monotonic()
        while timers and timers[0][0] <= now:
            heapq.heappop(timers)[2]()
        until = min(latest, timers[0][0]) if timers else latest
        wait_ms = int((until - time.monotonic()) * 1000)
        handlers = self._handlers
        for fd, events in self._epoll.poll(max(wait_ms, 0) / 1000, _MAX_READY):
            handler = handlers.get(fd)
            if handler is not None:
                handler(events)
