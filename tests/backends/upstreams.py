"""A scripted OpenAI-compatible server on a real socket.

It echoes the prompt's text, token by token, and does on demand what broken servers do.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self

LOOK_S = 0.002


@dataclass
class Script:
    """What the server does with the next answers."""

    model: str = "echo-model"
    answers_as: str = ""  # the model that chunks name; "": its own
    ids: bool = True  # tells token ids
    split: int = 0  # bytes of a write; 0: an event each
    line_end: bytes = b"\n"
    step_s: float = 0.0
    status: int = 200
    error: str = "something failed"
    hangs_before: bool = False  # takes the request and says nothing
    probes_answer: bool = False  # though requests hang
    hangs_after: int = -1  # tokens, then says nothing more
    drops_after: int = -1  # tokens, then closes the connection
    fails_after: int = -1  # tokens, then an error event
    usage_factor: float = 1.0
    has_usage: bool = True
    context_tokens: int = 4096
    tokens_of_chunk: int = 1
    revision: str | None = None
    health_hangs: bool = False
    say: Callable[[list[int]], str] = lambda ids: "".join(map(chr, ids))


@dataclass
class Upstream:
    """`requests` are the bodies that were asked, `closed` those whose client left before the end."""

    script: Script = field(default_factory=Script)
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)
    open: int = 0
    port: int = 0
    tls: ssl.SSLContext | None = None

    async def start(self, port: int = 0) -> Self:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port or self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """As a process that is killed: all connections break."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def until_left(self, times: int) -> None:
        """So many clients have left, and nothing is computed for any."""
        async with asyncio.timeout(10):
            while len(self.closed) < times or self.open:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(LOOK_S)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def served(self) -> list[dict[str, Any]]:
        """Without probes."""
        return [body for body in self.requests if not self.is_probe(body)]

    def is_probe(self, body: dict[str, Any]) -> bool:
        return bool(body.get("max_tokens", 0) == 1 and len(body["prompt"]) == 1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                self.heads.append(head)
                length = next(
                    (
                        int(line.partition(":")[2])
                        for line in head.splitlines()
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                await self._answer(head.split()[1], body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, path: str, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        script = self.script
        if path in ("/v1/models", "/info"):
            if script.health_hangs:
                await self._until_left(reader)
            _whole(writer, 200, self.identity())
            return
        self.requests.append(body)
        self.open += 1
        try:
            if script.hangs_before and not (script.probes_answer and self.is_probe(body)):
                await self._until_left(reader)
            if script.status != 200:
                _whole(writer, script.status, self.error_body(script.error))
                return
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            left = asyncio.create_task(self._until_left(reader))
            talk = asyncio.create_task(self._talk(body, writer))
            await asyncio.wait((left, talk), return_when=asyncio.FIRST_COMPLETED)
            if not talk.done():
                talk.cancel()
                left.result()  # raises: the client left
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            talk.result()
        finally:
            self.open -= 1

    async def _until_left(self, reader: asyncio.StreamReader) -> None:
        """The client closes its connection."""
        while not (reader.at_eof() or reader.exception()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_S)
        self.closed.append(asyncio.get_running_loop().time())
        raise ConnectionResetError

    async def _talk(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        script, given, rest = self.script, 0, b""
        async for event in self.events(body):
            for name, limit in (
                ("drop", script.drops_after),
                ("hang", script.hangs_after),
                ("fail", script.fails_after),
            ):
                if limit >= 0 and given >= limit:
                    await self._break(name, writer)
            given += 1
            rest += b"data: " + event + script.line_end * 2
            while script.split and len(rest) >= script.split:
                piece, rest = rest[: script.split], rest[script.split :]
                _chunk(writer, piece)
                await writer.drain()
                await asyncio.sleep(0)
            if not script.split:
                _chunk(writer, rest)
                rest = b""
            await writer.drain()
            if script.step_s:
                await asyncio.sleep(script.step_s)
        if rest:
            _chunk(writer, rest)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _break(self, name: str, writer: asyncio.StreamWriter) -> None:
        if name == "fail":
            _chunk(writer, b"data: " + self.error_body(self.script.error) + b"\n\n")
            await writer.drain()
        if name == "hang":
            await asyncio.sleep(3600)
        writer.transport.abort()
        raise ConnectionResetError

    # -- what differs -------------------------------------------------------------------------------------

    def identity(self) -> bytes:
        entry = {"id": self.script.model, "max_model_len": self.script.context_tokens}
        return json.dumps({"object": "list", "data": [entry]}).encode()

    def error_body(self, message: str) -> bytes:
        status = self.script.status
        return json.dumps({"error": {"message": message, "code": status if status != 200 else 500}}).encode()

    async def events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        script = self.script
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else list(prompt.encode())
        produced = 0
        stops, kept = body.get("stop", []), body.get("include_stop_str_in_output", False)
        name = script.answers_as or script.model
        said = ""
        while produced < body["max_tokens"]:
            count = min(script.tokens_of_chunk, body["max_tokens"] - produced)
            tokens = [ids[(produced + at) % len(ids)] for at in range(count)]
            produced += count
            text = script.say(tokens)
            said += text
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": None}
            if script.ids and body.get("return_token_ids"):
                choice["token_ids"] = tokens
            stop = next((stop for stop in stops if said.endswith(stop)), None) if kept else None
            if stop is not None:
                choice |= {"finish_reason": "stop", "stop_reason": stop}
            elif produced == body["max_tokens"]:
                choice["finish_reason"] = "length"
            yield json.dumps({"model": name, "choices": [choice]}).encode()
            if stop is not None:
                break
        if script.has_usage:
            told = {
                "prompt_tokens": len(ids),
                "completion_tokens": int(produced * script.usage_factor),
                "prompt_tokens_details": {"cached_tokens": 2},
            }
            yield json.dumps({"model": name, "choices": [], "usage": told}).encode()
        yield b"[DONE]"


def _whole(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
