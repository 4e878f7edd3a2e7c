"""What an event of an upstream server costs on its way through a worker of ours: HTTP in, token frames out.

`python -m bench.upstream [--streams 200] [--rates 5000 10000 20000 0] [--seconds 8]`
A scripted server that speaks vLLM's chunks, one event a write, on one core with the gateway's end; the worker
alone on another. Rate 0 is as fast as the worker reads. Exit status 1 below the floors.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.report import bench_report
from config.environment import weights_dir
from gpuworker.wire.connection import Connection, connect, listen
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    Frame,
    Hello,
    Report,
    Run,
    Sampling,
    Submit,
    Welcome,
    pack_ids,
)
from modelsvc.importer import model_import_demo

SECRET = "bench"
MODEL = "bench-model"
FLOOR_EVENTS_S = 25_000.0
MOST_US = 22.0  # of the worker's core for an event, at 10,000 a second
WARM_UP_S = 1.5
TICK_S = 0.002
BATCH = 16  # events of a stream in a turn of the loop, as fast as it goes
BLOCKED_BYTES = 64 << 10


def event() -> bytes:
    choice = {"index": 0, "text": " token", "logprobs": None, "finish_reason": None, "token_ids": [260]}
    chunk = {"id": "cmpl-0123456789", "object": "text_completion", "created": 1, "model": MODEL}
    data = b"data: " + json.dumps({**chunk, "choices": [choice], "usage": None}).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Server(asyncio.Protocol):
    """An endless stream for each request; the first of each worker asks which model is served."""

    streams: "set[Server]" = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self.received = b""
            listing = json.dumps({"data": [{"id": MODEL}]}).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(listing), listing))
            return
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        if len(body) < int(length.partition(b":")[2]):
            return
        self.received = b""
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            + event()
        )
        self.streams.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.discard(self)


async def serve(port: int, rate: float) -> None:
    loop, said, due = asyncio.get_running_loop(), event(), 0.0
    await loop.create_server(Server, "127.0.0.1", port, backlog=1024)
    turn, before = 0, loop.time()
    while True:
        await asyncio.sleep(TICK_S if rate else 0)
        now = loop.time()
        streams = list(Server.streams)
        if not rate:
            for stream in streams:
                if stream.transport.get_write_buffer_size() < BLOCKED_BYTES:
                    for _ in range(BATCH):
                        stream.transport.write(said)
            if not streams:
                await asyncio.sleep(TICK_S)
            continue
        due, before = due + (now - before) * rate, now
        while due >= 1 and streams:
            streams[turn % len(streams)].transport.write(said)
            turn, due = turn + 1, due - 1
        due = min(due, rate * TICK_S * 5)


class Ends:
    """The worker's dispatcher and its gateway."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.events = self.frames = self.ends = 0
        self.is_ready = asyncio.Event()
        self.worker: Connection | None = None

    async def start(self) -> None:
        await listen(f"unix:{self.folder}/d", self._dispatcher_said, lambda *_: None)

    def _dispatcher_said(self, connection: Connection, message: AnyMessage) -> None:
        if isinstance(message, Hello):
            connection.send(Welcome(version=PROTOCOL_VERSION, id="d", incarnation="d"))
            self.worker = connection
        elif isinstance(message, Report) and not message.full:
            self.is_ready.set()

    async def join(self) -> Connection:
        gateway = await connect(f"unix:{self.folder}/w", self._gateway_said, lambda *_: None)
        gateway.send(Hello(version=PROTOCOL_VERSION, role="gateway", id="g", incarnation="g", secret=SECRET))
        return gateway

    def _gateway_said(self, connection: Connection, message: AnyMessage) -> None:
        if isinstance(message, Frame):
            self.frames += 1
            self.events += len(message.sids)
            self.ends += len(message.ends)

    def submit(self, sid: int) -> None:
        assert self.worker is not None
        submit = Submit(
            sid=sid,
            request_id=f"request-{sid}",
            attempt=1,
            tenant=f"tenant-{sid % 16}",
            model="bench",
            digest=self.digest,
            klass="interactive",
            prompt=pack_ids(list(range(300, 364))),
            max_tokens=1_000_000,
            sampling=Sampling(),
        )
        self.worker.send(Run(gateway="g", submit=submit))


@contextlib.contextmanager
def process(arguments: list[str], core: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(rate: float, streams: int, seconds: float, weights: Path) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="slu-") as name, contextlib.ExitStack() as stack:
        ends = Ends(Path(name), weights.name)
        await ends.start()
        stack.enter_context(
            process(["-m", "bench.upstream", "--serve", str(port), "--rate", str(rate)], cores[0])
        )
        arguments = [
            "-m",
            "gpuworker",
            "--id",
            "w",
            "--dispatch",
            f"unix:{name}/d",
            "--listen",
            f"unix:{name}/w",
        ]
        arguments += ["--weights", str(weights), "--model", "bench", "--spool", f"{name}/spool"]
        arguments += ["--backend", "openai", "--upstream-flavour", "vllm", "--upstream-model", MODEL]
        arguments += ["--upstream-url", f"http://127.0.0.1:{port}", "--max-rows", str(streams)]
        worker = stack.enter_context(process(arguments, cores[-1], SLUICE_WIRE_SECRET=SECRET))
        async with asyncio.timeout(30):
            await ends.is_ready.wait()
        gateway = await ends.join()
        for sid in range(1, streams + 1):
            ends.submit(sid)
        await asyncio.sleep(WARM_UP_S)
        events, frames, cpu, began = ends.events, ends.frames, cpu_s(worker.pid), time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began
        events, frames, cpu = ends.events - events, ends.frames - frames, cpu_s(worker.pid) - cpu
        for sid in range(1, streams + 1):
            gateway.send(Cancel(sid=sid))
        async with asyncio.timeout(10):
            while ends.ends < streams:  # noqa: ASYNC110 - the end of a bench
                await asyncio.sleep(0.01)
        gateway.abort("done")
    return {
        "offered events/s": rate or "as fast as it goes",
        "events/s": events / took_s,
        "worker core": cpu / took_s,
        "µs/event": cpu / max(events, 1) * 1e6,
        "events/frame": events / max(frames, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.upstream")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rates", type=float, nargs="+", default=[5_000, 10_000, 20_000, 0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve, options.rate))
        return 0
    weights = weights_dir() / model_import_demo(weights_dir(), progress=False).digest
    rows = [uvloop.run(measure(rate, options.streams, options.seconds, weights)) for rate in options.rates]
    bench_report("upstream", f"{options.streams} streams through one worker", rows)
    paced = [row for row in rows if row["offered events/s"] == 10_000]
    unpaced = [row for row in rows if row["offered events/s"] == "as fast as it goes"]
    is_slow = any(row["events/s"] < FLOOR_EVENTS_S for row in unpaced)
    return int(is_slow or any(row["µs/event"] > MOST_US for row in paced))


if __name__ == "__main__":
    sys.exit(main())
