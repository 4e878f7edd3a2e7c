"""A kept connection to a dispatcher or a worker: greet, heartbeat, notice silence, come back after a loss."""

import asyncio
import logging
import time
from collections.abc import Callable

from msgspec.structs import replace

from gpuworker.wire.connection import Connection, connect
from gpuworker.wire.dispatchers import ANSWER_S, SILENCE_S, Dispatchers
from gpuworker.wire.messages import HEARTBEAT_MS, AnyMessage, Heartbeat, Hello, Refusal, Welcome
from gpuworker.wire.quiet import Quiet
from gpuworker.wire.tls import WireTls

_MIN_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
_GREETING_S = 5.0

logger = logging.getLogger(__name__)


class Link:
    """`on_message` gets everything after the welcome, inside the read callback.

    `accept` judges the welcome: a reason refuses the peer. `on_ready` and `on_lost` alternate. `address` may
    be several dispatchers', of which one is active (`gpuworker.wire.dispatchers`). `role` and `peer_id` are
    what a certificate must say of the peer.
    """

    def __init__(
        self,
        name: str,
        address: str,
        hello: Hello,
        *,
        accept: Callable[[Welcome], str],
        on_ready: Callable[[], None],
        on_message: Callable[[AnyMessage], None],
        on_lost: Callable[[str], None],
        silence_s: float = 0.0,
        tls: WireTls | None = None,
        role: str = "",
        peer_id: str = "",
    ) -> None:
        self._name = name
        self._peers = Dispatchers(address)
        self._hello = hello
        self._accept = accept
        self._on_ready = on_ready
        self._on_message = on_message
        self._on_lost = on_lost
        self._silence_s = silence_s  # 0: somebody else judges the peer's silence
        self._answer_s = _GREETING_S
        if self._peers.are_several:
            self._silence_s, self._answer_s = SILENCE_S, ANSWER_S
        self._tls = tls
        self._role = role
        self._peer_id = peer_id
        self._connection: Connection | None = None
        self._causes = Quiet()  # of attempts in vain
        self.is_ready = False

    @property
    def has_standby(self) -> bool:
        """Another one takes over where the peer is lost."""
        return self._peers.are_several

    def send(self, message: AnyMessage) -> bool:
        """False when there is no welcomed connection."""
        return self.is_ready and self._connection is not None and self._connection.send(message)

    async def run(self) -> None:
        """Until cancelled."""
        backoff_s = _MIN_BACKOFF_S
        while True:
            was_ready, cause = await self._connect_once()
            if was_ready:
                backoff_s = _MIN_BACKOFF_S
                self._causes = Quiet()
            if was_ready or self._causes.may_say(cause, time.monotonic() * 1000):
                logger.warning("%s: %s", self._name, cause)
            self._peers.failed()
            await asyncio.sleep(self._peers.pause_s(backoff_s))
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _connect_once(self) -> tuple[bool, str]:
        """Whether the peer was ever ready, and why it no longer is."""
        closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_close(_: Connection, cause: str) -> None:
            if not closed.done():
                closed.set_result(cause)

        address = self._peers.address
        try:
            async with asyncio.timeout(self._answer_s):
                connection = await connect(
                    address, self._received, on_close, tls=self._tls, role=self._role, name=self._peer_id
                )
        except (OSError, TimeoutError) as error:
            return False, f"cannot connect to {address}: {str(error) or type(error).__name__}"
        self._connection = connection
        try:
            connection.send(replace(self._hello, term=self._peers.term))
            cause = await self._beat(connection, closed)
        finally:
            was_ready, self.is_ready, self._connection = self.is_ready, False, None
            connection.close()
        if was_ready:
            self._on_lost(cause)
        return was_ready, cause

    async def _beat(self, connection: Connection, closed: "asyncio.Future[str]") -> str:
        loop = asyncio.get_running_loop()
        opened_at = ticked_at = loop.time()
        while True:
            await asyncio.wait([closed], timeout=HEARTBEAT_MS / 1000)
            if closed.done():
                return closed.result()
            now = loop.time()
            was_stalled = now - ticked_at > 4 * HEARTBEAT_MS / 1000  # our own fault, not the peer's
            ticked_at = now
            if not self.is_ready:
                if now - opened_at > self._answer_s:
                    connection.abort("no welcome")
                continue
            silent_s = now - connection.last_received
            if self._silence_s and silent_s > self._silence_s and not was_stalled:
                connection.abort(f"silent for {silent_s:.1f} s")
            connection.send(Heartbeat())

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        if self.is_ready:
            self._on_message(message)
        elif isinstance(message, Welcome):
            if refusal := self._accept(message) or self._peers.welcomed(message):
                connection.abort(refusal)
                return
            self.is_ready = True
            self._on_ready()
        elif isinstance(message, Refusal):
            self._peers.refused(message)
            connection.close(f"refuses this gateway: {message.code}: {message.message}")
        else:
            connection.abort(f"{type(message).__name__} before the welcome")
