"""Sockets and timers around the dispatcher: greets peers, hands their messages on, ticks.

With a lease it is a standby until that is its own: then it refuses everybody, and says who is active.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from dispatch.dispatcher import Dispatcher
from dispatch.greeting import hello_check, standby_refusal
from dispatch.leads import NO_LEADS, Leads, leads_read, leads_write
from dispatch.lease import Lease
from dispatch.limits import Limits
from gpuworker.wire.connection import Connection, listen
from gpuworker.wire.messages import (
    FLEET_MS,
    HEARTBEAT_MS,
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    Heartbeat,
    Hello,
    Refusal,
    Refused,
    Report,
    Submit,
    Welcome,
    new_incarnation,
)
from gpuworker.wire.prefix_secret import prefix_secret
from gpuworker.wire.quiet import Quiet
from gpuworker.wire.tasks import tasks_end
from gpuworker.wire.tls import WireTls

logger = logging.getLogger(__name__)

_GREETING_TIMEOUT_S = 5.0
# After a takeover workers come first: what they run must not be placed again for gateways that were quicker.
_WORKERS_FIRST_S = 0.25


@dataclass(slots=True)
class Peer:
    role: str
    incarnation: str


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class DispatchServer:
    """Owns the connections; every decision is the `Dispatcher`'s. `peer_…` and `beat` are its whole input."""

    def __init__(
        self,
        secret: str,
        limits: Limits,
        now_ms: Callable[[], float] = monotonic_ms,
        seed: int | None = None,
        *,
        name: str = "dispatcher",
        lease: Lease | None = None,
        tls: WireTls | None = None,
    ) -> None:
        self.name = name
        self.incarnation = new_incarnation()
        self._secret = secret.encode()
        self._limits = limits
        self._now_ms = now_ms
        self._random = Random(seed)  # noqa: S311
        self._lease = lease
        self._tls = tls
        self.serves = lease is None
        self._dispatcher = self._dispatcher_new()
        self._peers: dict[Connection, Peer] = {}
        self._strangers: dict[Connection, float] = {}
        self._early: dict[Connection, Hello] | None = None  # gateways that wait for the workers to come first
        self._refusals = Quiet()

    def _dispatcher_new(self, leads: Leads = NO_LEADS) -> Dispatcher:
        secret = prefix_secret(self._secret.decode())
        return Dispatcher(self._limits, secret, self._now_ms(), self._random, leads)

    async def serve(
        self, address: str, stop: asyncio.Event, *work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """`work` runs beside it and does not end by itself. Raises OSError when the address is taken."""
        server = await listen(address, self.peer_said, self.peer_closed, self.peer_opened, tls=self._tls)
        timers = [asyncio.create_task(one()) for one in (self._heartbeats, self._fleet_states, *work)]
        logger.info("dispatcher listening on %s", address)
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopping, *timers], return_when=asyncio.FIRST_COMPLETED)
        await tasks_end([stopping, *timers])
        server.close()
        self._peers_close("dispatcher stops")
        for connection in self._strangers:
            connection.close("dispatcher stops")
        for task in done - {stopping}:
            task.result()  # a timer never ends by itself: its exception ends the process

    # -- the lease ----------------------------------------------------------------------------------------

    def leads(self) -> str:
        """For the one that follows."""
        return leads_write(self._dispatcher.leads())

    def lease_changed(self, left: str = "") -> None:
        """Serve, or stop serving, as it says. `left`: what the last one told in `leads`."""
        if self._lease is None or self._lease.is_active == self.serves:
            return
        self.serves = self._lease.is_active
        self._dispatcher = self._dispatcher_new(leads_read(left))
        if self.serves:
            logger.warning("active now term=%d", self._lease.term)
            self._early = {}
            asyncio.get_running_loop().call_later(_WORKERS_FIRST_S, self._early_admit)
            return
        logger.warning("standby now, term %d is over", self._lease.term)
        self._early = None
        self._peers_close("this dispatcher is a standby")

    def _peers_close(self, cause: str) -> None:
        """Their ends are nothing that the others should hear of."""
        peers, self._peers = self._peers, {}
        for connection in peers:
            connection.close(cause)

    def term_heard(self, term: int) -> None:
        if self._lease is not None:
            self._lease.heard(term, self._now_ms())
            if not self._lease.is_active:  # to begin, what was left is asked for first
                self.lease_changed()

    def _early_admit(self) -> None:
        early, self._early = self._early, None
        for connection, hello in (early or {}).items():
            if connection in self._strangers:
                self._admit(connection, hello)

    def _may_act(self) -> bool:
        if self._lease is None or not self.serves or self._lease.may_act(self._now_ms()):
            return self.serves
        self.lease_changed()
        return False

    # -- connections --------------------------------------------------------------------------------------

    def peer_opened(self, connection: Connection) -> None:
        self._strangers[connection] = self._now_ms()

    def peer_said(self, connection: Connection, message: AnyMessage) -> None:
        may_act = self._may_act()
        peer = self._peers.get(connection)
        if peer is None:
            if connection in self._strangers:
                self._greet(connection, message)
            return
        assert may_act, "a standby has no peers"
        now_ms = self._now_ms()
        dispatcher, incarnation = self._dispatcher, peer.incarnation
        match peer.role, message:
            case "gateway", Submit():
                dispatcher.submit(incarnation, message, now_ms)
            case "gateway", Cancel():
                dispatcher.cancel(incarnation, message)
            case "worker", Report():
                dispatcher.report(incarnation, message, now_ms)
            case "worker", Refused():
                dispatcher.refused(incarnation, message, now_ms)
            case _, Heartbeat():
                pass
            case role, _:
                logger.warning("closing a %s that sent %s", role, type(message).__name__)
                connection.abort("unexpected message")
                return
        if peer.role == "gateway":
            dispatcher.gateway_heard(incarnation, now_ms)
        elif peer.role == "worker":
            dispatcher.worker_heard(incarnation, now_ms)

    def _greet(self, connection: Connection, message: AnyMessage) -> None:
        hello = hello_check(message, self._secret, connection.names)
        if isinstance(hello, Refusal):
            self._refuse(connection, hello)
            return
        self.term_heard(hello.term)
        if not self.serves or hello.role == "dispatcher":
            self._refuse(connection, standby_refusal(self._lease))
        elif self._early is not None and hello.role == "gateway":
            self._early[connection] = hello
        elif hello.role == "worker" and (problem := self._dispatcher.worker_problem(hello, self._now_ms())):
            self._refuse(connection, Refusal(code=problem[0], message=problem[1]))
        else:
            self._admit(connection, hello)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        self._strangers.pop(connection, None)
        for other, peer in list(self._peers.items()):
            if peer.incarnation == hello.incarnation:  # came back before its old connection was seen to end
                del self._peers[other]
                other.abort("replaced by a newer connection")
        self._peers[connection] = Peer(hello.role, hello.incarnation)
        term = self._lease.term if self._lease is not None else 0
        connection.send(
            Welcome(version=PROTOCOL_VERSION, id=self.name, incarnation=self.incarnation, term=term)
        )
        if hello.role == "gateway":
            self._dispatcher.gateway_joined(hello, connection, self._now_ms())
        elif hello.role == "worker":
            self._dispatcher.worker_joined(hello, connection, self._now_ms())
        logger.info("%s %s joined", hello.role, hello.id)

    def _refuse(self, connection: Connection, refusal: Refusal) -> None:
        if refusal.code != "standby" and self._refusals.may_say(refusal.code, self._now_ms()):
            logger.warning("refusing a peer: %s: %s", refusal.code, refusal.message)
        connection.send(refusal)
        connection.close(refusal.code)

    def peer_closed(self, connection: Connection, cause: str) -> None:
        self._strangers.pop(connection, None)
        if self._early is not None:
            self._early.pop(connection, None)
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        if peer.role == "gateway":
            self._dispatcher.gateway_lost(peer.incarnation, self._now_ms())
        elif peer.role == "worker":
            self._dispatcher.worker_lost(peer.incarnation, cause)

    # -- timers -------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            self.beat()

    def beat(self) -> None:
        now_ms = self._now_ms()
        if self._may_act():
            self._dispatcher.tick(now_ms)
        for connection in list(self._peers):
            connection.send(Heartbeat())
        for connection, opened_ms in list(self._strangers.items()):
            if now_ms - opened_ms > _GREETING_TIMEOUT_S * 1000:
                connection.abort("said nothing")

    async def _fleet_states(self) -> None:
        while True:
            await asyncio.sleep(FLEET_MS / 1000)
            state = self._dispatcher.fleet_state(self._now_ms(), int(time.time() * 1000))
            for connection, peer in list(self._peers.items()):
                if peer.role == "controller":
                    connection.send(state)
