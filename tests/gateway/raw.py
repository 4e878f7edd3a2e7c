"""HTTP by hand: for what a well-behaved client would never send, and for closing when we choose."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """`close_all` is for fixtures: a test that fails must not leave sockets behind."""

    _opened: ClassVar[set["RawConnection"]] = set()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._opened.add(self)

    @classmethod
    async def open(cls, port: int) -> "RawConnection":
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        return cls(reader, writer)

    def send(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: gateway", *headers]
        if body and not any(header.lower().startswith("content-length") for header in headers):
            lines.append(f"content-length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def head(self) -> Response:
        block = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = block.strip().split("\r\n")
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        return Response(int(status_line.split()[1]), headers, b"")

    async def response(self) -> Response:
        response = await self.head()
        if response.headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                response.body += chunk
        else:
            response.body = await self.reader.readexactly(int(response.headers.get("content-length", 0)))
        return response

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; empty at its end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def closed(self) -> None:
        """Returns once the other side has closed."""
        while await self.reader.read(65536):
            pass

    def close(self) -> None:
        self.writer.close()
        self._opened.discard(self)

    @classmethod
    def close_all(cls) -> None:
        for connection in list(cls._opened):
            connection.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def request(port: int, method: str, path: str, body: bytes = b"", *headers: str) -> Response:
    connection = await RawConnection.open(port)
    try:
        connection.send(method, path, body, *headers)
        return await asyncio.wait_for(connection.response(), 20)
    finally:
        connection.close()


async def metric(port: int, name: str) -> float:
    """The sum of a metric over its labels."""
    text = (await request(port, "GET", "/metrics")).body.decode()
    lines = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
