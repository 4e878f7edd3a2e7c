"""`python -m bench.gateway`: what the gateway adds to a request, and what a token costs it.

A real gateway process between this process's own HTTP clients, dispatcher and worker: no model and no
PostgreSQL. Times are taken here, on one clock. This process plays all the peers, which limits the unpaced
rows; CPU microseconds per event in the paced rows are the figure to compare.
"""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("SLUICE_KEY_PEPPER", secrets.token_hex(32))

from bench.report import bench_report, median, percentile
from gpuworker.wire.messages import Submit, unpack_ids
from tests.gateway.harness import MODEL, GatewayProcess, gateway_started
from tests.gateway.peers import end, frame
from tests.gateway.raw import RawConnection

PROMPT_TOKENS = 128
IDLE_REQUESTS = 300
PACED_RATE = 10
PACED_SECONDS = 8
PACED_STREAMS = (100, 500)
UNPACED_STREAMS, UNPACED_TOKENS = 64, 500
_OUTBOX_BYTES = 1 << 20
_MARK = b'"content":" @'


class StreamClient(asyncio.Protocol):
    """One streaming request; counts events, and takes the transit time of each from its text."""

    def __init__(self, request: bytes, transits_ms: list[float]) -> None:
        self._request = request
        self._transits_ms = transits_ms
        self._rest = b""
        self.events = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_us = time.monotonic_ns() // 1000
        *pieces, self._rest = (self._rest + data).split(b"\n\n")
        for piece in pieces:
            at = piece.find(_MARK)
            if at >= 0:
                at += len(_MARK)
                self.events += 1
                self._transits_ms.append((now_us - int(piece[at : at + 16])) / 1000)
            elif b"data: [DONE]" in piece:
                self.done.set_result(None)
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the stream ended without [DONE]"))


@dataclass
class Cpu:
    """CPU time of the gateway process between two moments."""

    pid: int
    started_s: float = 0.0

    def start(self) -> None:
        self.started_s = self._used_s()

    def spent_s(self) -> float:
        return self._used_s() - self.started_s

    def _used_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _body(*, stream: bool, tokens: int) -> bytes:
    content = "x" * (PROMPT_TOKENS - 12)  # the template adds 12 tokens around it
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": MODEL, "messages": messages, "stream": stream, "max_tokens": tokens}).encode()


def _request(gateway: GatewayProcess, body: bytes) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: bench", gateway.authorization()]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


async def idle_overhead(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """One request at a time on one kept connection: client's write to the dispatcher's Submit."""
    to_submit_ms: list[float] = []
    whole_ms: list[float] = []
    sent_at = 0.0

    def script(submit: Submit) -> None:
        to_submit_ms.append((time.perf_counter() - sent_at) * 1000)
        gateway.dispatcher.place(submit, gateway.worker)
        prompt = len(unpack_ids(submit.prompt))
        gateway.worker.send(
            frame((submit.sid, 0, 1, "x"), ends=(end(submit.sid, "stop", prompt=prompt, output=1),))
        )

    request = _request(gateway, _body(stream=False, tokens=1))
    connection = await RawConnection.open(gateway.port)
    with gateway.dispatcher.scripted(script):
        for _ in range(IDLE_REQUESTS):
            sent_at = time.perf_counter()
            connection.writer.write(request)
            response = await connection.response()
            assert response.status == 200
            whole_ms.append((time.perf_counter() - sent_at) * 1000)
            await asyncio.sleep(0.002)
    connection.close()
    return [
        _row("idle: request in → dispatcher submit, p50", median(to_submit_ms), "ms"),
        _row("idle: request in → dispatcher submit, p95", percentile(to_submit_ms, 0.95), "ms"),
        _row("idle: whole answer, usage fsynced, p50", median(whole_ms), "ms"),
    ]


async def fan_out(
    gateway: GatewayProcess, streams: int, tokens: int, pace: Callable[[int], Any]
) -> tuple[float, float, list[float], int]:
    """Seconds, the gateway's CPU seconds, transit times in ms, and events delivered."""
    transits_ms: list[float] = []
    request = _request(gateway, _body(stream=True, tokens=300))
    loop = asyncio.get_running_loop()
    clients: list[StreamClient] = []
    submits: list[Submit] = []
    for _ in range(streams):
        _, client = await loop.create_connection(
            lambda: StreamClient(request, transits_ms), "127.0.0.1", gateway.port
        )
        clients.append(client)
        submit = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(submit, gateway.worker)
        submits.append(submit)
    assert gateway.process.pid is not None
    cpu, started_at = Cpu(gateway.process.pid), time.perf_counter()
    cpu.start()
    for step in range(tokens):
        await pace(step)
        text = f" @{time.monotonic_ns() // 1000:016d}"
        gateway.worker.send(frame(*((submit.sid, step, 1, text) for submit in submits)))
    gateway.worker.send(frame(ends=tuple(end(submit.sid, "length", output=tokens) for submit in submits)))
    await asyncio.gather(*(client.done for client in clients))
    seconds = time.perf_counter() - started_at
    return seconds, cpu.spent_s(), transits_ms, sum(client.events for client in clients)


async def paced(gateway: GatewayProcess, streams: int) -> list[dict[str, Any]]:
    began_at = time.perf_counter()

    async def pace(step: int) -> None:
        nonlocal began_at
        if step == 0:
            began_at = time.perf_counter()
        await asyncio.sleep(max(began_at + step / PACED_RATE - time.perf_counter(), 0))

    _, cpu_s, transits_ms, events = await fan_out(gateway, streams, PACED_RATE * PACED_SECONDS, pace)
    name = f"paced {streams} streams x {PACED_RATE}/s"
    return [
        _row(f"{name}: gateway CPU per event", cpu_s / events * 1e6, "µs"),
        _row(f"{name}: worker → client, p50", median(transits_ms), "ms"),
        _row(f"{name}: worker → client, p99", percentile(transits_ms, 0.99), "ms"),
    ]


async def unpaced(gateway: GatewayProcess) -> list[dict[str, Any]]:
    async def pace(_: int) -> None:
        connection = gateway.worker.connection
        assert connection is not None
        await asyncio.sleep(0)
        while connection.outbox_bytes > _OUTBOX_BYTES:  # noqa: ASYNC110 - the transport offers no event here
            await asyncio.sleep(0.001)

    seconds, cpu_s, _, events = await fan_out(gateway, UNPACED_STREAMS, UNPACED_TOKENS, pace)
    name = f"unpaced {UNPACED_STREAMS} streams"
    return [
        _row(f"{name}: tokens delivered", events / seconds, "tokens/s"),
        _row(f"{name}: gateway CPU per event", cpu_s / events * 1e6, "µs"),
    ]


def _row(measure: str, value: float, unit: str) -> dict[str, Any]:
    return {"measure": measure, "value": round(value, 2), "unit": unit}


async def _run() -> None:
    async with gateway_started() as gateway:
        rows = await idle_overhead(gateway)
        for streams in PACED_STREAMS:
            rows += await paced(gateway, streams)
        rows += await unpaced(gateway)
        await gateway.idle()
    bench_report("gateway", "Gateway between scripted peers", rows, prompt_tokens=PROMPT_TOKENS)


def main() -> None:
    asyncio.run(_run())


if __name__ == "__main__":
    main()
