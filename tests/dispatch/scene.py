"""One dispatcher on a manual clock, with in-memory peers."""

from random import Random
from typing import Any

from dispatch.dispatcher import Dispatcher
from dispatch.limits import Limits
from gpuworker.wire.messages import HEARTBEAT_MS
from tests.dispatch.peers import Inbox, hello, report, submit

PREFIX_SECRET = b"names of prefixes"


class Scene:
    """One dispatcher, one gateway `g`, and workers as a test adds them."""

    def __init__(self, **limits: Any) -> None:
        self.now = 1_000.0
        self.dispatcher = Dispatcher(Limits(**limits), PREFIX_SECRET, 0.0, Random(1))
        self.dispatcher.tick(self.now)
        self.gateway = Inbox()
        self.dispatcher.gateway_joined(hello("gateway", "gateway-0", "g"), self.gateway, self.now)

    def worker(self, name: str = "w", **fields: Any) -> Inbox:
        inbox = Inbox()
        self.dispatcher.worker_joined(hello("worker", name, name, **fields), inbox, self.now)
        self.dispatcher.report(name, report(1, free_blocks=fields.get("blocks", 64)), self.now)
        return inbox

    def submit(self, sid: int, **fields: Any) -> None:
        self.dispatcher.submit("g", submit(sid, **fields), self.now)

    def silent_for(self, ms: float, *, except_gateway: bool = True) -> None:
        until = self.now + ms
        while self.now < until:
            self.now = min(until, self.now + HEARTBEAT_MS)
            if except_gateway:
                self.dispatcher.gateway_heard("g", self.now)
            self.dispatcher.tick(self.now)
