"""A client of `/v1/stream` for tests: the `websockets` library, and what each request was told, in order."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WAIT_S

MESSAGES = [{"role": "user", "content": "hello"}]
ENDS = ("done", "response", "cancelled", "error")
SERVER = ["--ws", "tests.gateway.server:QuickSocketProtocol"]


@dataclass
class Told:
    """All frames of one request."""

    frames: list[dict[str, Any]] = field(default_factory=list)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["type"] == "chunk"]

    @property
    def last(self) -> dict[str, Any]:
        return self.frames[-1]

    @property
    def request_id(self) -> str:
        (frame,) = [frame for frame in self.frames if frame["type"] == "request.accepted"]
        return str(frame["request_id"])

    @property
    def text(self) -> str:
        """Of a chat, or of a completion."""
        choices = [choice for chunk in self.chunks for choice in chunk["data"]["choices"]]
        return "".join(
            choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices
        )

    def gapless(self, after: int = 0) -> bool:
        numbers = [frame["seq"] for frame in self.frames if "seq" in frame]
        return numbers == list(range(after + 1, after + 1 + len(numbers)))


class SocketClient:
    """Frames that no request has are in `others`."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.told: dict[str, Told] = {}
        self.others: list[dict[str, Any]] = []

    async def send(self, **frame: Any) -> None:
        await self.connection.send(json.dumps(frame))

    async def create(self, name: str, body: dict[str, Any] | None = None, **fields: Any) -> None:
        body = {"model": MODEL, "messages": MESSAGES, "stream": True} if body is None else body
        await self.send(type="request.create", id=name, body=body, **fields)

    async def receive(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(await asyncio.wait_for(self.connection.recv(), WAIT_S))
        if (name := frame.get("id")) is not None:
            self.told.setdefault(name, Told()).frames.append(frame)
        else:
            self.others.append(frame)
        return frame

    async def receive_until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):  # pings would keep it waiting
            while (frame := await self.receive())["type"] != kind:
                pass
        return frame

    async def ended(self, *names: str) -> list[Told]:
        """Reads until all of these have ended."""
        waited = {name for name in names if not self._has_ended(name)}
        async with asyncio.timeout(WAIT_S):
            while waited:
                await self.receive()
                waited = {name for name in waited if not self._has_ended(name)}
        return [self.told[name] for name in names]

    async def chat(self, name: str, **fields: Any) -> Told:
        await self.create(name, **fields)
        (told,) = await self.ended(name)
        return told

    async def is_open(self) -> bool:
        """A ping, and all that was said before its pong."""
        await self.send(type="ping")
        await self.receive_until("pong")
        return True

    async def closed(self) -> tuple[int, str]:
        """Code and reason with which the server closes; what comes before is kept."""
        with suppress(ConnectionClosed):
            while True:
                await self.receive()
        assert self.connection.close_code is not None
        return self.connection.close_code, self.connection.close_reason or ""

    def _has_ended(self, name: str) -> bool:
        return name in self.told and self.told[name].last["type"] in ENDS


@asynccontextmanager
async def socket_open(
    gateway: GatewayProcess, key: str | None = None, path: str = "", **options: Any
) -> AsyncIterator[SocketClient]:
    headers = {"Authorization": f"Bearer {key or gateway.key}"}
    options = {"additional_headers": headers, **options}
    async with connect(
        f"ws://127.0.0.1:{gateway.port}/v1/stream{path}", proxy=None, max_size=None, **options
    ) as connection:
        yield SocketClient(connection)
