"""An asyncio event loop whose time is made up: it never waits, so whole processes run in milliseconds.

Production code runs on it unchanged. Connections are those of a `network`; there are no others.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol


class Network(Protocol):
    async def connect(self, factory: Callable[[], asyncio.Protocol], address: str) -> asyncio.Protocol: ...

    def listen(self, factory: Callable[[], asyncio.Protocol], address: str) -> asyncio.AbstractServer: ...


class _Waiting:
    """What the loop selects from: nothing ever happens but time."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits for something that never comes")
        self._loop.now += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Time is in seconds, from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.network: Network | None = None
        self._selector = _Waiting(self)
        self.failures: list[BaseException] = []  # of callbacks and of tasks that nobody awaits
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self.now

    async def create_unix_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], path: str
    ) -> tuple[None, asyncio.Protocol]:
        assert self.network is not None
        return None, await self.network.connect(protocol_factory, path)

    async def create_unix_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], path: str, *, backlog: int = 0
    ) -> asyncio.AbstractServer:
        assert self.network is not None
        return self.network.listen(protocol_factory, path)

    async def pass_time(self, seconds: float) -> None:
        """Raises what failed meanwhile."""
        await asyncio.sleep(seconds)
        if self.failures:
            raise self.failures[0]

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or AssertionError(context["message"]))

    def _process_events(self, event_list: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        """Nobody wakes it from another thread."""
