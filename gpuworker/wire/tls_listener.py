"""Accepts TLS connections; handshakes that are not finished are bounded in time and number."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from gpuworker.wire.quiet import Quiet
from gpuworker.wire.tls import tls_reason

HANDSHAKE_S = 5.0
SHUTDOWN_S = 2.0
MAX_HANDSHAKES = 128  # at a time; one more cuts the oldest, which took longest for what takes milliseconds
_EXHAUSTED_S = 0.5

logger = logging.getLogger(__name__)


class TlsListener(asyncio.AbstractServer):
    """Connections belong to their protocols once they are made: `close` ends listening and handshakes."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        max_handshakes: int = MAX_HANDSHAKES,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._sockets = sockets
        self._factory = factory
        self._context = context
        self._max_handshakes = max_handshakes
        self._handshake_s = handshake_s
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._failures = Quiet()
        self._accepting = [asyncio.create_task(self._accept(listener)) for listener in sockets]

    def close(self) -> None:
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for listener in self._sockets:
            listener.close()

    def is_serving(self) -> bool:
        return not all(task.done() for task in self._accepting)

    async def wait_closed(self) -> None:
        await asyncio.wait([*self._accepting, *self._handshakes])

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._accepting[0].get_loop()

    async def start_serving(self) -> None:
        """It does from the beginning."""

    async def serve_forever(self) -> None:
        await asyncio.wait(self._accepting)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:  # descriptors are exhausted, or the peer is gone again
                logger.warning("wire: cannot accept: %s", error)
                await asyncio.sleep(_EXHAUSTED_S)
                continue
            if len(self._handshakes) >= self._max_handshakes:
                oldest = next(iter(self._handshakes))
                self._handshakes.pop(oldest)
                oldest.cancel()
            task = asyncio.create_task(self._greet(accepted, address))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            await asyncio.sleep(0)  # it begins, and others have their turn: many may wait to be accepted

    async def _greet(self, accepted: socket.socket, address: object) -> None:
        """From here on the socket is its transport's, which closes it however this ends."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except ssl.SSLError as error:
            reason = tls_reason(error)
            if self._failures.may_say(reason, asyncio.get_running_loop().time() * 1000):
                logger.warning("wire: no TLS with %s: %s", address, reason)
        except OSError as error:  # it left, or said nothing: as those do who only look whether a port is open
            logger.debug("wire: no TLS with %s: %s", address, error)
