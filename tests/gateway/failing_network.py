"""A network between processes on Unix sockets that can fail without a word: nothing passes, nothing ends."""

import asyncio
from collections.abc import Callable
from pathlib import Path


class FailingNetwork:
    """Listens at `front` for whoever wants to reach who listens at `back`.

    Held, it keeps what is sent, and lets ends of connections pass: what was under way is lost with them. Cut,
    it keeps those too. Healed, it passes on whatever it kept.
    """

    def __init__(self, front: Path, back: Path) -> None:
        self.is_held = self.is_cut = False
        self._front, self._back = front, back
        self._sides: set[_Side] = set()
        self._joining: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Side(self, self._entered), str(self._front))

    def hold(self) -> None:
        self.is_held = True

    def cut(self) -> None:
        self.is_held = self.is_cut = True

    def heal(self) -> None:
        self.is_held = self.is_cut = False
        for side in list(self._sides):
            side.pass_on()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._joining:
            task.cancel()
        for side in self._sides:
            side.abort()
        await asyncio.sleep(0)

    def _entered(self, side: "_Side") -> None:
        task = asyncio.create_task(self._join(side))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, side: "_Side") -> None:
        loop = asyncio.get_running_loop()
        try:
            _, other = await loop.create_unix_connection(lambda: _Side(self), str(self._back))
        except OSError:
            side.abort()
            return
        self._sides |= {side, other}
        side.other, other.other = other, side
        side.pass_on()


class _Side(asyncio.Protocol):
    """One of the two connections that are made one."""

    def __init__(self, network: FailingNetwork, entered: Callable[["_Side"], None] | None = None) -> None:
        self.other: _Side | None = None
        self._network, self._entered = network, entered
        self._kept: list[bytes] = []
        self._has_ended = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._entered is not None:
            self._entered(self)

    def data_received(self, data: bytes) -> None:
        self._kept.append(data)
        if not self._network.is_held:
            self.pass_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        if self.other is not None and not self._network.is_cut:
            self.other.abort()

    def pass_on(self) -> None:
        """What was kept, and the end."""
        if self.other is None or self.other._transport is None:
            return
        kept, self._kept = self._kept, []
        self.other._transport.writelines(kept)
        if self._has_ended:
            self.other._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
