"""A balancer of TCP connections before several gateways, as clients of a platform have one."""

import asyncio
import contextlib
from itertools import count

from tests.gateway.proxy import copy


class Balancer:
    """Each connection goes to the next gateway that accepts it. `ports` may change at any time."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.port = 0
        self._turn = count()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            their_reader, their_writer = await self._connect()
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(reader, their_writer))
                group.create_task(copy(their_reader, writer))
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            first = next(self._turn)
            for number in range(len(self.ports)):
                with contextlib.suppress(OSError):
                    port = self.ports[(first + number) % len(self.ports)]
                    return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.02)
