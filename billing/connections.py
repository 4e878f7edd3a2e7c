"""A few database connections on which nobody waits long, even if PostgreSQL hangs. No Django here.

psycopg's own pool keeps a client waiting while it retries in growing pauses after an outage, and cancelling a
query sends a cancel request that a hanging server answers as little. Here a connection is made when one is
needed, fails at once when it cannot be, and is cut at the deadline.
"""

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg

_AWAY = (psycopg.OperationalError, psycopg.InterfaceError, OSError, TimeoutError)


class StoreUnavailable(Exception):
    """PostgreSQL cannot be reached, or did not answer in time. What was asked may have happened or not."""


class Connections:
    """At most `size` connections at a time, kept between uses, for one event loop."""

    def __init__(self, database_url: str, *, size: int, limit_s: float) -> None:
        self._database_url = database_url
        self._limit_s = limit_s
        self._free = asyncio.Semaphore(size)
        self._idle: list[psycopg.AsyncConnection[Any]] = []

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """One transaction, over after `limit_s` at the latest. Raises StoreUnavailable."""
        deadline = asyncio.get_running_loop().time() + self._limit_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise StoreUnavailable("all connections to PostgreSQL are in use") from None
        try:
            conn = await self._take(deadline)
            try:
                with _cut_at(conn, deadline):
                    async with conn.transaction():
                        yield conn
            finally:
                await self._give_back(conn)
        except _AWAY as error:
            raise StoreUnavailable(f"PostgreSQL is away: {error}") from error
        finally:
            self._free.release()

    async def close(self) -> None:
        """Those not in use."""
        while self._idle:
            await self._idle.pop().close()

    async def _take(self, deadline: float) -> psycopg.AsyncConnection[Any]:
        while self._idle:
            conn = self._idle.pop()
            if not _has_input(conn):
                return conn
            await conn.close()
        async with asyncio.timeout_at(deadline):
            return await psycopg.AsyncConnection.connect(
                self._database_url,
                autocommit=True,  # transactions are begun explicitly
                options=f"-c statement_timeout={int(self._limit_s * 1000)}",
            )

    async def _give_back(self, conn: psycopg.AsyncConnection[Any]) -> None:
        if conn.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self._idle.append(conn)
        else:
            await conn.close()
            await self.close()  # whatever befell this one befell those that lay idle


def _has_input(conn: psycopg.AsyncConnection[Any]) -> bool:
    """On a connection that lies idle that is its server's last word."""
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _cut_at(conn: psycopg.AsyncConnection[Any], deadline: float) -> Iterator[None]:
    """Shuts the socket down at the deadline, so that whoever waits for an answer gets an error."""

    def cut() -> None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(conn.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)

    timer = asyncio.get_running_loop().call_at(deadline, cut)
    try:
        yield
    finally:
        timer.cancel()
