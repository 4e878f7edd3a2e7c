"""One connection to Valkey for commands that are packed already: many at once, replies in order."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Connection, ConnectionPool
from redis.exceptions import ResponseError

Reply = Any  # bytes, int, None, a list of replies, or ResponseError
OnReply = Callable[[Reply], None]


class Exchanger:
    """Not for two tasks at a time. After any error the connection is closed."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    async def exchange(self, commands: Sequence[tuple[bytes, OnReply]]) -> None:
        """Each reply is handed over as soon as it is there. Raises RedisError, TimeoutError."""
        if not commands:
            return
        connection = self._connection
        async with asyncio.timeout(self._timeout_s):
            await connection.send_packed_command(
                b"".join([packed for packed, _ in commands]), check_health=False
            )
            for _, on_reply in commands:
                try:
                    # Its own timeout, which costs as much as the reply, is turned off.
                    reply = await connection.read_response(
                        disable_decoding=True, timeout=math.inf, disconnect_on_error=False
                    )
                except ResponseError as error:
                    reply = error
                on_reply(reply)

    async def ask(self, packed: bytes) -> Reply:
        """Raises RedisError, TimeoutError."""
        replies: list[Reply] = []
        await self.exchange([(packed, replies.append)])
        if isinstance(replies[0], ResponseError):
            raise replies[0]
        return replies[0]


@asynccontextmanager
async def connected(url: str, timeout_s: float) -> AsyncIterator[Exchanger]:
    """Raises RedisError, OSError."""
    pool = ConnectionPool.from_url(url, protocol=2, socket_timeout=None, socket_connect_timeout=timeout_s)
    connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(timeout_s):
            await connection.connect()
        yield Exchanger(connection, timeout_s)
    finally:
        await connection.disconnect(nowait=True)
