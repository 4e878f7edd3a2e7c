"""A client that reads as slowly as a test says: a small receive buffer, and one read at a time."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SlowClient:
    """Nothing is read but by these calls."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.received = b""

    async def read(self, max_bytes: int) -> int:
        """How many came; 0 at the end, also when the connection was reset."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self._socket, max_bytes)
        except ConnectionResetError:
            return 0
        self.received += data
        return len(data)

    async def read_to_the_end(self) -> None:
        """To the last chunk of the answer, or to the end of the connection."""
        while await self.read(65536) and not self.received.endswith(b"0\r\n\r\n"):
            pass

    async def drip(self, interval_s: float) -> None:
        """A byte at a time, to the end of the connection."""
        while await self.read(1):  # noqa: ASYNC110 - the pace is what is tested
            await asyncio.sleep(interval_s)


@asynccontextmanager
async def slow_client(port: int, data: bytes) -> AsyncIterator[SlowClient]:
    """Connected, with `data` sent; closed at the end."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, data)
        yield SlowClient(client)
