"""A TCP or Unix-socket relay that can be cut: PostgreSQL that goes away and comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit, urlunsplit


@asynccontextmanager
async def relayed(url: str) -> AsyncIterator["Relay"]:
    """Started, and cut in the end whatever was done to it."""
    relay = Relay(url)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.cut()


class Relay:
    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._relaying: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """The target's URL, through this relay."""
        user, _, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{self.port}", query=""))

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Refuse new connections and drop those that are open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._relaying, return_exceptions=True)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if folder := parse_qs(self._target.query).get("host"):
            port = parse_qs(self._target.query).get("port", [str(self._target.port or 5432)])[0]
            return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{port}")
        return await asyncio.open_connection(self._target.hostname, self._target.port)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relaying.add(task)
        task.add_done_callback(self._relaying.discard)
        target_reader, target_writer = await self._open()
        pair = {writer, target_writer}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(reader, target_writer))
                group.create_task(copy(target_reader, writer))
        finally:
            self._writers -= pair


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
