"""The worker's own door: gateways come for token frames, the controller for usage, other workers for KV."""

import asyncio
import logging
from typing import Protocol

from gpuworker.greeting import hello_check
from gpuworker.prefill_service import PrefillService
from gpuworker.usage_journal import WorkerIdentity
from gpuworker.wire.connection import Connection, listen
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    Collect,
    Collected,
    Heartbeat,
    Hello,
    Pause,
    Refusal,
    Resume,
    RowKey,
    Submit,
    Welcome,
)
from gpuworker.wire.quiet import Quiet
from gpuworker.wire.tls import WireTls

GREETING_TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 2.0

logger = logging.getLogger(__name__)


class Visitors(Protocol):
    """Who acts on what visitors say."""

    def gateway_joined(self, gateway: str, connection: Connection) -> None: ...
    def gateway_left(self, gateway: str, connection: Connection) -> None: ...
    def row_cancel(self, row: RowKey, reason: str) -> None: ...
    def row_pause(self, row: RowKey) -> None: ...
    def row_resume(self, row: RowKey) -> None: ...
    def usage_collect(self, request: Collect) -> Collected: ...


class Listener:
    """Owns the connections until they have greeted; afterwards a gateway's belongs to its outbox too."""

    def __init__(
        self,
        secret: str,
        identity: WorkerIdentity,
        visitors: Visitors,
        prefills: PrefillService,
        *,
        gateways: tuple[str, ...] = (),
        tls: WireTls | None = None,
    ) -> None:
        """`gateways`: names of those that may come; any where none is named."""
        self._secret = secret
        self._gateways = gateways
        self._tls = tls
        self._refusals = Quiet()
        self._identity = identity
        self._visitors = visitors
        self._prefills = prefills
        self._server: asyncio.AbstractServer | None = None
        self._peers: dict[Connection, Hello | None] = {}  # None: did not greet yet
        self._empty = asyncio.Event()

    async def open(self, address: str) -> None:
        """Raises OSError when the address is taken."""
        self._server = await listen(address, self._received, self._closed, self._opened, tls=self._tls)

    async def close(self) -> None:
        """Nobody new; those who are here get what was sent to them, if they read it in time."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._peers):
            connection.close("worker stops")
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                while self._peers:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            for connection in list(self._peers):
                connection.abort("worker stops")

    def _opened(self, connection: Connection) -> None:
        self._peers[connection] = None
        asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self._expect_greeting, connection)

    def _expect_greeting(self, connection: Connection) -> None:
        if connection in self._peers and self._peers[connection] is None:
            connection.abort("said nothing")

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        peer = self._peers[connection]
        if peer is None:
            self._greet(connection, message)
            return
        match peer.role, message:
            case "gateway", Cancel():
                self._visitors.row_cancel(RowKey(peer.incarnation, message.sid), message.reason)
            case "gateway", Pause():
                self._visitors.row_pause(RowKey(peer.incarnation, message.sid))
            case "gateway", Resume():
                self._visitors.row_resume(RowKey(peer.incarnation, message.sid))
            case "worker", Submit():
                self._prefills.submit(connection, message)
            case "worker", Cancel():
                self._prefills.cancel(connection, message.sid)
            case "controller", Collect():
                connection.send(self._visitors.usage_collect(message))
            case _, Heartbeat():
                pass
            case role, _:
                logger.warning("closing a %s that sent %s", role, type(message).__name__)
                connection.abort("unexpected message")

    def _greet(self, connection: Connection, message: AnyMessage) -> None:
        hello = hello_check(
            message,
            self._secret,
            self._identity.incarnation,
            names=connection.names,
            gateways=self._gateways,
        )
        if isinstance(hello, Refusal):
            if self._refusals.may_say(hello.code, asyncio.get_running_loop().time() * 1000):
                logger.warning("refusing a visitor: %s: %s", hello.code, hello.message)
            connection.send(hello)
            connection.close(hello.code)
            return
        self._peers[connection] = hello
        identity = self._identity
        connection.send(
            Welcome(
                version=PROTOCOL_VERSION,
                id=identity.id,
                incarnation=identity.incarnation,
                digest=identity.digest,
            )
        )
        logger.info("%s joined id=%s incarnation=%s", hello.role, hello.id, hello.incarnation)
        if hello.role == "gateway":
            self._visitors.gateway_joined(hello.incarnation, connection)
        elif hello.role == "worker":
            self._prefills.joined(hello.incarnation, connection)

    def _closed(self, connection: Connection, cause: str) -> None:
        peer = self._peers.pop(connection)
        if not self._peers:
            self._empty.set()
        if peer is not None:
            logger.info("%s left id=%s: %s", peer.role, peer.id, cause)
            if peer.role == "gateway":
                self._visitors.gateway_left(peer.incarnation, connection)
            elif peer.role == "worker":
                self._prefills.left(connection)
