"""A raw HTTP client for tests that drop its connection, or lose the process at its other end."""

import asyncio
import contextlib
import json
from typing import Any
from urllib.parse import urlsplit


class Caller:
    """A raw HTTP request whose connection the test can drop at any moment."""

    def __init__(self, stack: Any) -> None:
        self.url = urlsplit(stack.demo["base_url"])
        self.key = stack.demo["api_key"]
        self.model = stack.demo["model"]
        self.writer: asyncio.StreamWriter | None = None
        self.reader: asyncio.StreamReader | None = None

    async def post(self, prompt: str, *, stream: bool, max_tokens: int) -> None:
        body = json.dumps(
            {
                "model": self.model,
                "prompt": prompt,
                "stream": stream,
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
        ).encode()
        self.reader, self.writer = await asyncio.open_connection(self.url.hostname, self.url.port)
        self.writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: {self.url.netloc}\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await self.writer.drain()

    async def read_events(self, count: int) -> dict[str, Any]:
        """The last of `count` events."""
        assert self.reader is not None
        event: dict[str, Any] = {}
        while count:
            line = await self.reader.readline()
            assert line, "the stream ended early"
            if line.startswith(b"data: {"):
                count -= 1
                event = json.loads(line[6:])
        return event

    async def leave(self) -> None:
        assert self.writer is not None
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
