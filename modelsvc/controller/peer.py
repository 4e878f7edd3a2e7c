"""An outgoing wire connection of the controller, greeted and alive, or an exception."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpuworker.wire.connection import Connection, connect
from gpuworker.wire.dispatchers import Dispatchers
from gpuworker.wire.messages import (
    DEAD_MS,
    HEARTBEAT_MS,
    PROTOCOL_VERSION,
    AnyMessage,
    Heartbeat,
    Hello,
    Refusal,
    Welcome,
)
from gpuworker.wire.tls import WireTls

GREETING_TIMEOUT_S = 5.0
_MAX_UNREAD = 64  # a peer answers one request at a time, or sends a state twice a second


class PeerLost(Exception):
    """The peer cannot be reached, refused us, went away or fell silent."""


class Peer:
    """`receive` gives the messages in order, heartbeats left out."""

    def __init__(self, connection: Connection, unread: "asyncio.Queue[AnyMessage | PeerLost]") -> None:
        self._connection = connection
        self._unread = unread
        self.incarnation = ""

    def send(self, message: AnyMessage) -> None:
        if not self._connection.send(message):
            raise PeerLost("connection closed")

    async def receive(self) -> AnyMessage:
        """Raises PeerLost, and keeps raising it."""
        message = await self._unread.get()
        if isinstance(message, PeerLost):
            self._unread.put_nowait(message)
            raise message
        return message

    async def keep_alive(self) -> None:
        """Beats until cancelled; aborts a connection on which nothing has arrived for DEAD_MS."""
        loop = asyncio.get_running_loop()
        while self._connection.is_open:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            self._connection.send(Heartbeat())
            if loop.time() - self._connection.last_received > DEAD_MS / 1000:
                self._connection.abort("silent")


@asynccontextmanager
async def peer_open(
    address: str | Dispatchers, *, name: str, incarnation: str, secret: str, tls: WireTls | None = None
) -> AsyncIterator[Peer]:
    """Connect to a worker, or to the dispatcher that is next, and greet as a controller. Raises PeerLost,
    here and later."""
    dispatchers = address if isinstance(address, Dispatchers) else None
    target = address if isinstance(address, str) else address.address
    unread: asyncio.Queue[AnyMessage | PeerLost] = asyncio.Queue()

    def received(connection: Connection, message: AnyMessage) -> None:
        if isinstance(message, Heartbeat):
            return
        if unread.qsize() >= _MAX_UNREAD:
            connection.abort("sends more than the controller reads")
        unread.put_nowait(message)

    def closed(connection: Connection, cause: str) -> None:
        unread.put_nowait(PeerLost(cause))

    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            connection = await connect(
                target, received, closed, tls=tls, role="dispatcher" if dispatchers else "worker"
            )
    except OSError as error:  # TimeoutError is one
        raise PeerLost(f"{target}: {error}") from error
    peer = Peer(connection, unread)
    try:
        peer.send(
            Hello(
                version=PROTOCOL_VERSION,
                role="controller",
                id=name,
                incarnation=incarnation,
                secret=secret,
                term=dispatchers.term if dispatchers else 0,
            )
        )
        peer.incarnation = await _welcome(peer, target, dispatchers)
        beating = asyncio.create_task(peer.keep_alive())
        try:
            yield peer
        finally:
            beating.cancel()
    finally:
        connection.close()


async def _welcome(peer: Peer, address: str, dispatchers: Dispatchers | None) -> str:
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            answer = await peer.receive()
    except TimeoutError as error:
        raise PeerLost(f"{address}: no answer to the greeting") from error
    if isinstance(answer, Refusal):
        if dispatchers is not None:
            dispatchers.refused(answer)
        raise PeerLost(f"{address}: refused: {answer.code}: {answer.message}")
    if not isinstance(answer, Welcome):
        raise PeerLost(f"{address}: answered the greeting with {type(answer).__name__}")
    if dispatchers is not None and (refusal := dispatchers.welcomed(answer)):
        raise PeerLost(f"{address}: {refusal}")
    return answer.incarnation
