"""Keeps the lease: asks its store in time, gives it back at the end, and tells the other dispatchers."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from redis.exceptions import RedisError

from dispatch.lease import Lease
from dispatch.lease_store import ANSWER_S, LeaseStore
from gpuworker.wire.connection import connect
from gpuworker.wire.messages import AnyMessage, Hello, Refusal
from gpuworker.wire.tls import WireTls

LEADS_MS = 1_000.0
TELL_S = 1.0
TELL_ANSWER_S = 0.5

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """Who the lease is for."""

    def lease_changed(self, left: str) -> None:
        """It may have. `left`: what the last holder said in `leads`, where it is ours now."""

    def leads(self) -> str: ...

    @property
    def serves(self) -> bool: ...


class LeaseKeeper:
    def __init__(self, lease: Lease, store: LeaseStore, holder: Holder, now_ms: Callable[[], float]) -> None:
        self._lease = lease
        self._store = store
        self._holder = holder
        self._told_ms = -math.inf  # when it was last told of the leads
        self._now_ms = now_ms
        self._trouble = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(max(0.0, self._lease.next_ms - self._now_ms()) / 1000)
            left = ""
            claim = self._lease.asks(self._now_ms())
            try:
                async with asyncio.timeout(ANSWER_S):
                    grant = await self._store.claim(claim)
            except (RedisError, OSError) as error:  # TimeoutError is an OSError
                self._say(f"{type(error).__name__}: {error}")
                self._lease.failed(self._now_ms())
            else:
                self._say("")
                self._lease.granted(grant, self._now_ms())
                if self._lease.is_active:
                    left = await self._leads_exchange()
            self._holder.lease_changed(left)

    async def _leads_exchange(self) -> str:
        """Told now and then by who serves; asked for by who is about to. What is lost is worth no trouble."""
        try:
            async with asyncio.timeout(ANSWER_S):
                if not self._holder.serves:
                    return await self._store.left()
                if self._now_ms() - self._told_ms >= LEADS_MS:
                    self._told_ms = self._now_ms()
                    await self._store.leave(self._holder.leads())
        except (RedisError, OSError) as error:
            logger.debug("leads: %s", error)
        return ""

    async def close(self) -> None:
        """Another may take over at once."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._store.release()
                await self._store.close()
        except (RedisError, OSError) as error:
            logger.warning("the lease was not given back, it expires: %s", error)

    def _say(self, trouble: str) -> None:
        """Once for the same in a row."""
        if trouble and not self._trouble:
            role = "serving on" if self._lease.is_active else "nobody takes over"
            logger.warning("the lease's store cannot be asked, %s: %s", role, trouble)
        elif self._trouble and not trouble:
            logger.info("the lease's store answers again")
        self._trouble = trouble


class Announcer:
    """Tells the other dispatchers the term of the active one, so that a deposed one steps down even where it
    cannot reach the store."""

    def __init__(
        self,
        lease: Lease,
        others: Sequence[str],
        hello: Callable[[], Hello],
        tls: WireTls | None,
        on_term: Callable[[int], None],
    ) -> None:
        self._lease = lease
        self._others = others
        self._hello = hello
        self._tls = tls
        self._on_term = on_term

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._lease.is_active:
                await asyncio.gather(*map(self._tell, self._others))
            await asyncio.sleep(TELL_S)

    async def _tell(self, address: str) -> None:
        """The other answers with the highest term it has seen, and closes."""
        closed = asyncio.Event()

        def received(_: object, message: AnyMessage) -> None:
            if isinstance(message, Refusal):
                self._on_term(message.term)

        try:
            async with asyncio.timeout(TELL_ANSWER_S):
                connection = await connect(
                    address, received, lambda *_: closed.set(), tls=self._tls, role="dispatcher"
                )
                try:
                    connection.send(self._hello())
                    await closed.wait()
                finally:
                    connection.close()
        except OSError:  # it does not run, or does not answer: then it needs not know; TimeoutError is one
            return
