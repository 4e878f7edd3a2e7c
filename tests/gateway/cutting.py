"""A client whose connection is cut at random bytes, and that goes on where it was, on whichever gateway."""

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tests.gateway.durable import MESSAGES, Fleet
from tests.gateway.harness import MODEL
from tests.gateway.raw import RawConnection

WAIT_S = 20.0
MEAN_BYTES = 900.0  # of a response, before it is cut
PAUSES_S = (0.0, 0.0, 0.02, 0.2)  # before it is resumed


class Speech(NamedTuple):
    """How one dialect streams; `text_of` takes an event's JSON."""

    path: str
    body: dict[str, Any]
    text_of: Callable[[Any], str]
    end: str  # in the last event


def _delta(event: Any) -> str:
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


def _content_delta(event: Any) -> str:
    return str(event["delta"]["text"]) if event["type"] == "content_block_delta" else ""


def _chat(event: Any) -> str:
    return str(event["choices"][0]["delta"].get("content") or "")


def _token(event: Any) -> str:
    return str(event["token"]["text"])


_NAMED = {"model": MODEL, "stream": True, "max_tokens": 50}
SPEECHES = (
    Speech("/v1/chat/completions", {**_NAMED, "messages": MESSAGES}, _chat, "[DONE]"),
    Speech("/v1/completions", {**_NAMED, "prompt": "x"}, lambda event: event["choices"][0]["text"], "[DONE]"),
    Speech("/v1/responses", {"model": MODEL, "stream": True, "input": "x"}, _delta, "response.completed"),
    Speech("/v1/messages", {**_NAMED, "messages": MESSAGES}, _content_delta, "message_stop"),
    Speech("/generate_stream", {"inputs": "x"}, _token, '"generated_text":"'),
    Speech("/", {"inputs": "x", "stream": True}, _token, '"generated_text":"'),
)


class Event(NamedTuple):
    stream_id: str
    number: int
    data: str


class Reader:
    """Of one request that may be resumed. AssertionError: a gap, a repeat, or an event of another stream."""

    def __init__(self, fleet: Fleet, rng: Random, speech: Speech, *headers: str) -> None:
        self.events: list[Event] = []
        self.request_id = ""
        self.has_ended = False
        self.broken_off = ""  # the error of a connection that ended without the stream
        self.cuts = 0
        self._fleet = fleet
        self._rng = rng
        self._speech = speech
        self._headers = ("x-stream-resume: 1", *headers)

    @property
    def text(self) -> str:
        datas = [event.data for event in self.events if event.data != "[DONE]"]
        return "".join(self._speech.text_of(json.loads(data)) for data in datas)

    async def run(self, cuts: int) -> None:
        """To the end, cut so many times at most on the way."""
        gateways = len(self._fleet.gateways)
        connection = await self._begin(self._rng.randrange(gateways))
        head = await asyncio.wait_for(connection.head(), WAIT_S)
        assert head.status == 200, await connection.reader.read(2000)
        self.request_id = head.headers["x-request-id"]
        while not await self._read(connection, self._limit(cuts)):
            await asyncio.sleep(self._rng.choice(PAUSES_S))
            connection = await self._resume(self._rng.randrange(gateways))
            head = await asyncio.wait_for(connection.head(), WAIT_S)
            assert head.status == 200, await connection.reader.read(2000)

    def _limit(self, cuts: int) -> int | None:
        return int(self._rng.expovariate(1 / MEAN_BYTES)) if self.cuts < cuts else None

    async def _begin(self, gateway: int) -> RawConnection:
        speech = self._speech
        return await self._fleet.open(speech.body, *self._headers, gateway=gateway, path=speech.path)

    async def _resume(self, gateway: int) -> RawConnection:
        path = f"/v1/streams/{self.request_id}"
        if not self.events:
            return await self._fleet.open({}, gateway=gateway, path=path, method="GET")
        last = self.events[-1]
        if self._rng.random() < 0.5:
            header = f"last-event-id: {last.stream_id}:{last.number}"
            return await self._fleet.open({}, header, gateway=gateway, path=path, method="GET")
        path = f"/v1/streams/{last.stream_id}?after={last.number}"
        return await self._fleet.open({}, gateway=gateway, path=path, method="GET")

    async def _read(self, connection: RawConnection, limit: int | None) -> bool:
        """Whether the answer was read to its end; else the connection was cut after `limit` bytes."""
        raw, is_whole, self.broken_off = b"", False, ""
        while not is_whole and (limit is None or len(raw) < limit):
            wanted = 65536 if limit is None else limit - len(raw)
            data = await asyncio.wait_for(connection.reader.read(wanted), WAIT_S)
            if not data:
                self._take(unchunked(raw)[0])
                raise ConnectionError("the gateway closed the connection")
            raw += data
            is_whole = unchunked(raw)[1]
        self._take(unchunked(raw)[0])
        if not is_whole:
            self.cuts += 1
            if self._rng.random() < 0.5:
                connection.writer.transport.abort()
        connection.close()
        self.has_ended = is_whole and not self.broken_off
        return is_whole

    def _take(self, body: bytes) -> None:
        for block in body.decode(errors="ignore").split("\n\n")[:-1]:
            lines = [line for line in block.split("\n") if not line.startswith(":")]
            fields = dict(line.split(": ", 1) for line in lines)
            if "id" not in fields:  # only this connection ends
                self.broken_off = fields["data"]
                continue
            stream_id, _, number = fields["id"].rpartition(":")
            event = Event(stream_id, int(number), fields["data"])
            if self.events:
                assert (event.stream_id, event.number) == (
                    self.events[-1].stream_id,
                    self.events[-1].number + 1,
                )
            else:
                assert event.number == 1
            self.events.append(event)


class Survivor(Reader):
    """Its gateway may die: it goes on elsewhere, or begins again with its key, until it has all."""

    async def run(self, cuts: int) -> None:
        while not self.has_ended:
            gateway = self._rng.randrange(len(self._fleet.gateways))
            try:
                await self._try(gateway, self._limit(cuts))
            except OSError:
                await asyncio.sleep(0.05)
            except asyncio.IncompleteReadError:
                pass  # killed before its head

    async def _try(self, gateway: int, limit: int | None) -> None:
        connection = await (self._resume(gateway) if self.events else self._begin(gateway))
        head = await asyncio.wait_for(connection.head(), WAIT_S)
        if head.status == 200:
            self.request_id = head.headers["x-request-id"]
            await self._read(connection, limit)
            last = self.events[-1].data if self.events else ""
            if '"gateway_lost"' in last + self.broken_off:
                self._begin_again()
        else:
            assert head.status in (409, 410, 503), await connection.reader.read(2000)
            if head.status == 410:
                self._begin_again()
            await asyncio.sleep(0.1)

    def _begin_again(self) -> None:
        self.events.clear()
        self.has_ended = False


def unchunked(raw: bytes) -> tuple[bytes, bool]:
    """What has arrived of a chunked body, and whether that is all of it."""
    body, at = b"", 0
    while (line_end := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:line_end], 16)
        if not size:
            return body, raw.endswith(b"\r\n\r\n")
        body += raw[line_end + 2 : line_end + 2 + size]
        at = line_end + 2 + size + 2
    return body, False
