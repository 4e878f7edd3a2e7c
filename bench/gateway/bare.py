"""The ceiling: the least an ASGI application can do for the same traffic under the same server.

No keys, limits, worker or usage. It paces its streams itself, in groups as a worker does, one task a stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from bench.gateway.client import time_mark

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_PREFIX = (
    b'data: {"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion.chunk",'
    b'"created":1790000000,"model":"tiny","choices":[{"index":0,"delta":{"content":"'
)
_SUFFIX = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
_ANSWER = (
    b'{"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion","created":1790000000,'
    b'"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"' + b"x" * 64 + b'"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":128,"completion_tokens":16,"total_tokens":144}}'
)
_ROWS_PER_STEP = 64

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Group:
    """Streams that get their tokens together."""

    def __init__(self, rate: float) -> None:
        self.wakes: set[asyncio.Event] = set()
        self.size = 0
        self.event = b""
        self._task = asyncio.create_task(self._run(1 / rate))

    async def _run(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self.wakes or self.size < _ROWS_PER_STEP:
            due += interval_s
            await asyncio.sleep(due - loop.time())
            self.event = _PREFIX + time_mark().encode() + _SUFFIX
            for wake in self.wakes:
                wake.set()


class BareApplication:
    """`x-rate` and `x-tokens` say what a stream shall be; without them the answer is whole."""

    def __init__(self) -> None:
        self._groups: dict[float, Group] = {}

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        headers = dict(scope["headers"])
        while (await receive()).get("more_body"):
            pass
        if b"x-rate" in headers:
            await self._stream(float(headers[b"x-rate"]), int(headers[b"x-tokens"]), send)
            return
        length = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_ANSWER))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": _ANSWER})

    async def _stream(self, rate: float, tokens: int, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        group = self._groups.get(rate)
        if group is None or group.size == _ROWS_PER_STEP:
            group = self._groups[rate] = Group(rate)
        group.size += 1
        wake = asyncio.Event()
        group.wakes.add(wake)
        event = _PREFIX + time_mark().encode() + _SUFFIX  # the first token comes at once
        for _ in range(tokens):
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await wake.wait()
            wake.clear()
            event = group.event
        group.wakes.discard(wake)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def make() -> BareApplication:
    return BareApplication()
