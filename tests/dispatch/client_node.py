"""A simulated process that keeps a connection to the dispatcher, and what it may ask of its world."""

from typing import TYPE_CHECKING, Protocol

from gpuworker.wire.messages import HEARTBEAT_MS, AnyMessage, Heartbeat, Run, Welcome
from tests.dispatch.network import Clock, End, Node

if TYPE_CHECKING:
    from tests.dispatch.gateway_node import Gateway
    from tests.dispatch.worker_node import Worker


class Fleet(Protocol):
    """What a node may ask of the world around it."""

    def dial(self, node: "Client") -> End | None: ...
    def worker(self, incarnation: str) -> "Worker | None": ...
    def gateway(self, incarnation: str) -> "Gateway | None": ...
    def accepted(self, worker: "Worker", run: Run) -> None: ...


class Client(Node):
    """Keeps a connection to the dispatcher: greets, comes back after a loss."""

    def __init__(self, clock: Clock, fleet: Fleet, name: str, incarnation: str) -> None:
        super().__init__(clock)
        self.fleet = fleet
        self.name = name
        self.incarnation = incarnation
        self.link: End | None = None
        self.is_joined = False
        self._heard = 0.0
        self.every(lambda: HEARTBEAT_MS, self._beat)
        self._dial()

    def greeting(self) -> AnyMessage:
        raise NotImplementedError

    def joined(self) -> None: ...

    def beat(self) -> None: ...

    def told(self, message: AnyMessage) -> None:
        raise NotImplementedError

    def send(self, message: AnyMessage) -> bool:
        return self.is_joined and self.link is not None and self.link.send(message)

    def said(self, end: End, message: AnyMessage) -> None:
        self._heard = self.clock.now
        if isinstance(message, Welcome):
            self.is_joined = True
            self.joined()
        elif self.is_joined and not isinstance(message, Heartbeat):
            self.told(message)

    def closed(self, end: End) -> None:
        if end is self.link:
            self.link, self.is_joined = None, False
            self.clock.after(self.clock.random.uniform(50, 1_000), lambda: self.post(self._dial))

    def _dial(self) -> None:
        self.link = self.fleet.dial(self)
        if self.link is None:
            self.clock.after(self.clock.random.uniform(50, 1_000), lambda: self.post(self._dial))
        else:
            self._heard = self.clock.now
            self.link.send(self.greeting())

    def _beat(self) -> None:
        if self.link is not None and self.clock.now - self._heard > 5_000:
            self.link.abort("silent")
        self.beat()
