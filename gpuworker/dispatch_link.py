"""The worker's connection to the dispatcher: greets, keeps trying, and knows when a word would be heard."""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from gpuworker.wire import dispatchers
from gpuworker.wire.connection import Connection, connect
from gpuworker.wire.dispatchers import Dispatchers
from gpuworker.wire.messages import HEARTBEAT_MS, AnyMessage, Heartbeat, Hello, Refusal, Welcome
from gpuworker.wire.quiet import Quiet
from gpuworker.wire.tls import WireTls

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 2.0
CONNECT_TIMEOUT_S = 5.0
# Well over the dispatcher's patience with workers: a needless reconnect costs every row, silence costs none.
SILENCE_S = 5.0
_LOOK_S = HEARTBEAT_MS / 1000
_STALL_S = 4 * _LOOK_S

logger = logging.getLogger(__name__)


class DispatchLink:
    """`hello` is asked for a greeting at each attempt; `on_joined` follows the dispatcher's Welcome, and
    `on_lost` follows `on_joined`. While `may_join` says no, no attempt is made. `address` may be several, of
    which one is active: then silence is no more than its lease."""

    def __init__(
        self,
        address: str,
        hello: Callable[[], Hello],
        on_joined: Callable[[], None],
        on_message: Callable[[AnyMessage], None],
        on_lost: Callable[[], None],
        may_join: Callable[[], bool],
        tls: WireTls | None = None,
    ) -> None:
        self._dispatchers = Dispatchers(address)
        self._answer_s, self._silence_s = CONNECT_TIMEOUT_S, SILENCE_S
        if self._dispatchers.are_several:
            self._answer_s, self._silence_s = dispatchers.ANSWER_S, dispatchers.SILENCE_S
        self._tls = tls
        self._hello = hello
        self._on_joined = on_joined
        self._on_message = on_message
        self._on_lost = on_lost
        self._may_join = may_join
        self._connection: Connection | None = None
        self._lost = asyncio.Event()
        self._retry_s = FIRST_RETRY_S
        self._complaints = Quiet()
        self._is_explained = False  # why this attempt ends
        self.is_joined = False

    def send(self, message: AnyMessage) -> bool:
        """False while no dispatcher listens."""
        return self.is_joined and self._connection is not None and self._connection.send(message)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._lost.clear()
                self._is_explained = False
                if not self._may_join():
                    await asyncio.sleep(LAST_RETRY_S)
                    continue
                try:
                    async with asyncio.timeout(self._answer_s):
                        self._connection = await connect(
                            self._dispatchers.address,
                            self._received,
                            self._closed,
                            tls=self._tls,
                            role="dispatcher",
                        )
                except OSError as error:  # TimeoutError is one
                    self._complain(f"cannot reach it: {str(error) or type(error).__name__}")
                else:
                    self._connection.send(replace(self._hello(), term=self._dispatchers.term))
                    await self._attend(self._connection)
                self._dispatchers.failed()
                await asyncio.sleep(self._dispatchers.pause_s(self._retry_s))
                self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
        finally:
            self.is_joined, self._is_explained = False, True
            if self._connection is not None:
                self._connection.close("worker stops")

    async def _attend(self, connection: Connection) -> None:
        """Until it is lost. What this process slept through is not the dispatcher's silence."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        while not self._lost.is_set():
            await self._wait_lost(_LOOK_S)
            now = loop.time()
            was_stalled, looked_at = now - looked_at > _STALL_S, now
            patience_s = self._silence_s if self.is_joined else self._answer_s
            if now - connection.last_received > patience_s and not was_stalled:
                connection.abort("the dispatcher is silent")

    async def _wait_lost(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._lost.wait()
        except TimeoutError:
            return

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        if isinstance(message, Heartbeat):
            return
        if self.is_joined:
            self._on_message(message)
        elif isinstance(message, Welcome):
            if refusal := self._dispatchers.welcomed(message):
                self._refuse(connection, refusal)
                return
            self.is_joined, self._retry_s, self._complaints = True, FIRST_RETRY_S, Quiet()
            logger.info("joined dispatcher=%s term=%d", message.incarnation, message.term)
            self._on_joined()
        elif isinstance(message, Refusal):
            level = logging.INFO if message.code == "standby" else logging.ERROR
            self._refuse(connection, f"refuses this worker: {message.code}: {message.message}", level)
            self._dispatchers.refused(message)
        else:
            connection.abort(f"{type(message).__name__} before Welcome")

    def _closed(self, connection: Connection, cause: str) -> None:
        if self.is_joined:
            logger.warning("dispatcher lost: %s", cause)
            self.is_joined = False
            self._on_lost()
        elif not self._is_explained:
            self._complain(f"no answer to the greeting: {cause}")
        self._lost.set()

    def _refuse(self, connection: Connection, why: str, level: int = logging.ERROR) -> None:
        self._is_explained = True
        self._complain(why, level)
        connection.close("refused")

    def _complain(self, why: str, level: int = logging.ERROR) -> None:
        """Once a minute for the same cause."""
        complaint = f"dispatcher {self._dispatchers.address}: {why}"
        if self._complaints.may_say(complaint, asyncio.get_running_loop().time() * 1000):
            logger.log(level, "%s; trying again", complaint)
