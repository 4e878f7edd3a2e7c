"""While an answer is delivered its client is watched: one that leaves is noticed even in silence."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.http import ClientLeft, Exchange
from gateway.runtime import Gateway
from gateway.served import Served


class Watch:
    """Of one client, from its body's last byte on."""

    def __init__(self, exchange: Exchange) -> None:
        self._task = asyncio.create_task(_disconnect_wait(exchange))

    @property
    def has_left(self) -> bool:
        return self._task.done()

    @contextmanager
    def delivering(self, gateway: Gateway, served: Served) -> Iterator[None]:
        """Around a delivery; in the end the answer is left, whatever happens. Raises ClientLeft."""
        gateway.deliver_begin(served)
        try:
            if self.has_left:
                raise ClientLeft
            self._task.add_done_callback(lambda _: served.answer.leave())
            yield
        finally:
            gateway.deliver_end(served)
            self.close()

    def close(self) -> None:
        self._task.cancel()


async def _disconnect_wait(exchange: Exchange) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
