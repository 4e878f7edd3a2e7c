"""While an answer is delivered its client is watched: one that leaves is noticed even in silence."""

import asyncio
from collections.abc import Callable

from gateway.answers.served import Served
from gateway.http.exchange import ClientLeft, Exchange
from gateway.runtime import Gateway


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

    def delivering(self, gateway: Gateway, served: Served) -> "Delivering":
        return Delivering(self, gateway, served)

    def tell(self, callback: Callable[[], None]) -> None:
        """Of a client that is still there: have `callback` called when it leaves."""
        self._on_left = callback

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


class Delivering:
    """A context, around a delivery: in the end the answer is left, whatever happens.

    Entering it raises ClientLeft where there is nobody to deliver to.
    """

    __slots__ = ("_gateway", "_served", "_watch")

    def __init__(self, watch: Watch, gateway: Gateway, served: Served) -> None:
        self._watch = watch
        self._gateway = gateway
        self._served = served

    def __enter__(self) -> None:
        self._gateway.deliver_begin(self._served)
        if self._watch.has_left:
            self.__exit__()
            raise ClientLeft
        self._watch.tell(self._served.answer.leave)

    def __exit__(self, *_: object) -> None:
        self._gateway.deliver_end(self._served)
        self._watch.close()
