"""While an answer is delivered its client is watched: one that leaves is noticed even in silence."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.http import ClientLeft, Exchange
from gateway.runtime import Gateway
from gateway.served import Served


class Watch:
    """Of one client, from its body's last byte on."""

    __slots__ = ("_exchange", "_on_left", "_task", "has_left")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._on_left: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.has_left = False
        if not exchange.left_tell(self._left):
            self._task = asyncio.create_task(self._disconnect_wait())

    @contextmanager
    def delivering(self, gateway: Gateway, served: Served) -> Iterator[None]:
        """Around a delivery; in the end the answer is left, whatever happens. Raises ClientLeft."""
        gateway.deliver_begin(served)
        try:
            if self.has_left:
                raise ClientLeft
            self._on_left = served.answer.leave
            yield
        finally:
            gateway.deliver_end(served)
            self.close()

    def close(self) -> None:
        self._on_left = None
        if self._task is None:
            self._exchange.left_tell(None)
        else:
            self._task.cancel()

    def _left(self) -> None:
        self.has_left = True
        if self._on_left is not None:
            self._on_left()

    async def _disconnect_wait(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self._left()
