"""Stands between a client and several gateways: each connection goes to the next one, some are cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager


class Relay:
    """`limit` says after how many bytes of its responses a connection is cut; None: never."""

    def __init__(self, ports: Sequence[int], limit: Callable[[], int | None]) -> None:
        self.cuts = 0
        self.port = 0
        self._ports = ports
        self._limit = limit
        self._connections = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._ports[self._connections % len(self._ports)]
        self._connections += 1
        with contextlib.suppress(OSError):
            there, here = await asyncio.open_connection("127.0.0.1", port)
            back = asyncio.create_task(self._pass(there, writer, self._limit()))
            await self._pass(reader, here, None)
            await back
        writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
    ) -> None:
        passed = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                if limit is not None and passed + len(data) >= limit:
                    writer.write(data[: limit - passed])
                    self.cuts += 1
                    break
                passed += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def relaying(
    ports: Sequence[int], limit: Callable[[], int | None] = lambda: None
) -> AsyncIterator[Relay]:
    relay = Relay(ports, limit)
    server = await asyncio.start_server(relay.connected, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await server.wait_closed()
