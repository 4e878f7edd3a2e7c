"""What a dispatcher makes of its peers when its lease begins and ends, without sockets."""

from typing import cast

from msgspec.structs import replace

from dispatch.lease import Grant, Lease, LeaseTimes
from dispatch.limits import Limits
from dispatch.server import DispatchServer
from gpuworker.wire.connection import Connection
from gpuworker.wire.messages import AnyMessage, Heartbeat, Hello, Refusal, Run, Welcome
from tests.dispatch.peers import Inbox, hello, report, submit
from tests.dispatch.standby_pair import until

VALID_MS = LeaseTimes().valid_ms
WORKER, GATEWAY = hello("worker", "worker-0", "w"), hello("gateway", "gateway-0", "g")


class Dispatcher:
    """A server whose clock stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0
        self.lease = Lease(self.now_ms)
        self.server = DispatchServer("s", Limits(), lambda: self.now_ms, 1, lease=self.lease)

    def granted(self, term: int, *, is_ours: bool = True) -> None:
        self.lease.asks(self.now_ms)
        self.lease.granted(Grant(is_ours, term, "unix:/x", VALID_MS), self.now_ms)
        self.server.lease_changed()

    def greet(self, greeting: Hello) -> "Peer":
        peer = Peer(self.server)
        self.server.peer_opened(peer.connection)
        peer.says(greeting)
        return peer


class Peer(Inbox):
    """The server's end of a connection."""

    def __init__(self, server: DispatchServer) -> None:
        super().__init__()
        self.server = server
        self.names: tuple[str, ...] | None = None

    __hash__ = object.__hash__  # an Inbox is equal by its content
    __eq__ = object.__eq__

    @property
    def connection(self) -> Connection:
        return cast(Connection, self)

    def close(self, cause: str) -> None:
        self.is_open = False

    def says(self, message: AnyMessage) -> None:
        self.server.peer_said(self.connection, message)


async def test_after_a_takeover_workers_are_heard_before_gateways() -> None:
    dispatcher = Dispatcher()
    dispatcher.granted(7)
    gateway, worker = dispatcher.greet(GATEWAY), dispatcher.greet(WORKER)
    assert [welcome.term for welcome in worker.of(Welcome)] == [7]
    assert gateway.is_open
    assert not gateway.messages
    await until(lambda: gateway.of(Welcome))
    assert dispatcher.greet(replace(GATEWAY, incarnation="later")).of(Welcome)


async def test_a_gateway_that_left_before_its_turn_is_not_missed() -> None:
    dispatcher = Dispatcher()
    dispatcher.granted(7)
    gone, there = dispatcher.greet(GATEWAY), dispatcher.greet(replace(GATEWAY, incarnation="there"))
    dispatcher.server.peer_closed(gone.connection, "left")
    await until(lambda: there.of(Welcome))
    assert not gone.messages


async def test_a_standby_answers_everybody_with_who_is_active() -> None:
    dispatcher = Dispatcher()
    dispatcher.granted(9, is_ours=False)
    for greeting in (WORKER, GATEWAY, hello("controller", "c", "c"), hello("dispatcher", "d", "d")):
        peer = dispatcher.greet(greeting)
        (refusal,) = peer.of(Refusal)
        assert (refusal.code, refusal.active, refusal.term) == ("standby", "unix:/x", 9)
        assert not peer.is_open


async def test_who_slept_past_its_lease_acts_on_nothing_that_lay_there_meanwhile() -> None:
    dispatcher = Dispatcher()
    dispatcher.granted(7)
    worker, gateway = dispatcher.greet(WORKER), dispatcher.greet(GATEWAY)
    worker.says(report(1))
    await until(lambda: gateway.of(Welcome))
    gateway.says(submit(1))
    assert len(worker.of(Run)) == 1
    dispatcher.now_ms += VALID_MS
    gateway.says(submit(2))
    worker.says(report(2))
    gateway.says(Heartbeat())
    dispatcher.server.beat()
    assert len(worker.of(Run)) == 1
    assert not worker.is_open
    assert not gateway.is_open
    # And where it is its own again it begins anew
    dispatcher.granted(8)
    assert [welcome.term for welcome in dispatcher.greet(WORKER).of(Welcome)] == [8]


async def test_a_dispatcher_alone_needs_no_lease_and_makes_nobody_wait() -> None:
    server = DispatchServer("s", Limits(), lambda: 0.0, 1)
    for greeting in (GATEWAY, WORKER):
        peer = Peer(server)
        server.peer_opened(peer.connection)
        peer.says(replace(greeting, term=99))
        assert [welcome.term for welcome in peer.of(Welcome)] == [0]
