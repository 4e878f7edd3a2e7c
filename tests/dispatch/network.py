"""A simulated network on one clock: delayed, ordered connections between nodes that freeze and die."""

import heapq
import random
from collections.abc import Callable
from typing import Protocol

from gpuworker.wire.messages import AnyMessage

Action = Callable[[], None]


class Clock:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, when: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, action))

    def after(self, delay_ms: float, action: Action) -> None:
        self.at(self.now + delay_ms, action)

    def run(self, ms: float) -> None:
        until = self.now + ms
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = until


class Node:
    """A process: nothing happens in it while it is frozen, and nothing ever again once it died."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.alive = True
        self.thaws_at = 0.0
        self.frozen_ms = 0.0  # the longest it ever was
        self._held: list[tuple[int, Action]] = []

    @property
    def is_frozen(self) -> bool:
        return self.thaws_at > self.clock.now

    def post(self, action: Action, *, is_timer: bool = False) -> None:
        """Event loops run due timers before they look at their sockets."""
        if self.is_frozen or self._held:
            self._held.append((not is_timer, action))
        elif self.alive:
            action()

    def freeze(self, ms: float) -> None:
        self.thaws_at = max(self.thaws_at, self.clock.now + ms)
        self.frozen_ms = max(self.frozen_ms, ms)
        self.clock.at(self.thaws_at, self._thaw)

    def every(self, interval_ms: Callable[[], float], action: Action) -> None:
        def fire() -> None:
            action()
            arm()

        def arm() -> None:
            if self.alive:
                self.clock.after(interval_ms(), lambda: self.post(fire, is_timer=True))

        arm()

    def _thaw(self) -> None:
        if not self.is_frozen:
            held, self._held = sorted(self._held, key=lambda item: item[0]), []
            for _, action in held:
                self.post(action)


class Owner(Protocol):
    def post(self, action: Action) -> None: ...
    def said(self, end: "End", message: AnyMessage) -> None: ...
    def closed(self, end: "End") -> None: ...


class End:
    """One end of a connection, as its owner holds it. Close and abort differ in what is still delivered."""

    other: "End"
    names = None  # of a certificate

    def __init__(self, clock: Clock, owner: Owner) -> None:
        self.clock = clock
        self.owner = owner
        self.is_open = True
        self._arrives = 0.0  # of the last message: nothing overtakes it

    def __hash__(self) -> int:
        return id(self)

    def send(self, message: AnyMessage) -> bool:
        if self.is_open:
            self._deliver(lambda: self.other._receive(message))
        return self.is_open

    def close(self, cause: str = "") -> None:
        self._end(self._deliver)

    def abort(self, cause: str = "") -> None:
        """What is under way may be lost; the other side may learn of it only after this one came back."""
        delay_ms = self.clock.random.choice([0, 30, 2_000])
        self._end(lambda action: self.clock.after(delay_ms, action))

    def _end(self, tell: Callable[[Action], None]) -> None:
        if self.is_open:
            self.is_open = False
            self.clock.after(0, lambda: self.owner.post(lambda: self.owner.closed(self)))
            tell(self.other._eof)

    def _deliver(self, action: Action) -> None:
        self._arrives = max(self._arrives, self.clock.now + self.clock.random.uniform(0.1, 30))
        self.clock.at(self._arrives, action)

    def _receive(self, message: AnyMessage) -> None:
        self.owner.post(lambda: self.owner.said(self, message) if self.is_open else None)

    def _eof(self) -> None:
        def end() -> None:
            if self.is_open:
                self.is_open = False
                self.owner.closed(self)

        self.owner.post(end)
