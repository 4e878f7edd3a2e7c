"""Sockets and timers around the dispatcher: greets peers, hands their messages on, ticks."""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dispatch.dispatcher import Dispatcher
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

logger = logging.getLogger(__name__)

_GREETING_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Peer:
    role: str
    incarnation: str


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class DispatchServer:
    """Owns the connections; every decision is the `Dispatcher`'s. `peer_…` and `beat` are its whole input."""

    def __init__(
        self, secret: str, limits: Limits, now_ms: Callable[[], float] = monotonic_ms, seed: int | None = None
    ) -> None:
        self._secret = secret.encode()
        self._incarnation = new_incarnation()
        self._now_ms = now_ms
        self._dispatcher = Dispatcher(limits, prefix_secret(secret), now_ms(), Random(seed))  # noqa: S311
        self._peers: dict[Connection, Peer] = {}
        self._strangers: dict[Connection, float] = {}

    async def serve(self, address: str, stop: asyncio.Event) -> None:
        """Raises OSError when the address is taken."""
        server = await listen(address, self.peer_said, self.peer_closed, self.peer_opened)
        timers = [asyncio.create_task(self._heartbeats()), asyncio.create_task(self._fleet_states())]
        logger.info("dispatcher listening on %s", address)
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopping, *timers], return_when=asyncio.FIRST_COMPLETED)
        for task in [stopping, *timers]:
            task.cancel()
        server.close()
        for connection in [*self._peers, *self._strangers]:
            connection.close("dispatcher stops")
        for task in done - {stopping}:
            task.result()  # a timer never ends by itself: its exception ends the process

    # -- connections --------------------------------------------------------------------------------------

    def peer_opened(self, connection: Connection) -> None:
        self._strangers[connection] = self._now_ms()

    def peer_said(self, connection: Connection, message: AnyMessage) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            self._greet(connection, message)
            return
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

    def _greet(self, connection: Connection, hello: AnyMessage) -> None:
        if not isinstance(hello, Hello):
            self._refuse(connection, "bad_role", "the first message must be Hello")
        elif hello.version != PROTOCOL_VERSION:
            self._refuse(connection, "bad_version", f"this dispatcher speaks version {PROTOCOL_VERSION}")
        elif not hmac.compare_digest(hello.secret.encode(), self._secret):
            self._refuse(connection, "bad_secret", "SLUICE_WIRE_SECRET differs")
        elif hello.role not in ("gateway", "worker", "controller"):
            self._refuse(connection, "bad_role", f"unknown role {hello.role!r}")
        elif not hello.id or not hello.incarnation:
            self._refuse(connection, "bad_role", "every peer has a name and an incarnation")
        elif hello.role == "worker" and (problem := self._dispatcher.worker_problem(hello, self._now_ms())):
            self._refuse(connection, *problem)
        else:
            self._admit(connection, hello)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        self._strangers.pop(connection, None)
        for other, peer in list(self._peers.items()):
            if peer.incarnation == hello.incarnation:  # came back before its old connection was seen to end
                del self._peers[other]
                other.abort("replaced by a newer connection")
        self._peers[connection] = Peer(hello.role, hello.incarnation)
        connection.send(Welcome(version=PROTOCOL_VERSION, id="dispatcher", incarnation=self._incarnation))
        if hello.role == "gateway":
            self._dispatcher.gateway_joined(hello, connection, self._now_ms())
        elif hello.role == "worker":
            self._dispatcher.worker_joined(hello, connection, self._now_ms())
        logger.info("%s %s joined", hello.role, hello.id)

    def _refuse(self, connection: Connection, code: str, message: str) -> None:
        logger.warning("refusing a peer: %s: %s", code, message)
        connection.send(Refusal(code=code, message=message))
        connection.close(code)

    def peer_closed(self, connection: Connection, cause: str) -> None:
        self._strangers.pop(connection, None)
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
