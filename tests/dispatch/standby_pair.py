"""Two real dispatchers that share a lease, and peers that keep connections with the production links."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec.structs import replace

from gateway.upstream.link import Link
from gpuworker.dispatch_link import DispatchLink
from gpuworker.wire.connection import connect
from gpuworker.wire.messages import (
    HEARTBEAT_MS,
    AnyMessage,
    Hello,
    Refusal,
    RowFlow,
    RowKey,
    Run,
    Submit,
    Welcome,
)
from tests.dispatch.peers import hello, report


async def until(holds: Callable[[], object], timeout_s: float = 8.0) -> None:
    for _ in range(int(timeout_s * 100)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


class Pair:
    """`addresses` of both, as peers are told them; processes are by address."""

    def __init__(self, folder: Path, redis_url: str, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self._stack = stack
        self.each = (f"unix:{folder}/a.sock", f"unix:{folder}/b.sock")
        self.addresses = ",".join(self.each)
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, address: str) -> None:
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": "s",
            "SLUICE_DISPATCH": self.addresses,
            "REDIS_URL": self.redis_url,
        }
        log = self.folder / f"log-{address[-6]}"
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dispatch", "--listen", address),
                env=variables,
                stdout=file,
                stderr=file,
            )
        self.processes[address] = process
        self._stack.push_async_callback(self._end, process, log)
        await until(lambda: b"listening" in log.read_bytes(), 20)

    async def _end(self, process: asyncio.subprocess.Process, log: Path) -> None:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        await process.wait()
        sys.stdout.write(f"{log.name}:\n{await asyncio.to_thread(log.read_text)}")

    async def greet(self, address: str, *, term: int = 0) -> Welcome | Refusal:
        """What a dispatcher answers to a controller that has seen this term."""
        answer: asyncio.Future[AnyMessage] = asyncio.get_running_loop().create_future()

        def received(_: object, message: AnyMessage) -> None:
            if not answer.done():
                answer.set_result(message)

        async with asyncio.timeout(5):
            connection = await connect(address, received, lambda *_: None)
            connection.send(replace(hello("controller", "controller", f"c{id(answer)}"), term=term))
            message = await answer
        connection.abort("heard enough")
        assert isinstance(message, Welcome | Refusal)
        return message

    async def active(self) -> str:
        """The address of the one that serves, as soon as there is one."""
        async with asyncio.timeout(8):
            while True:
                for address, process in self.processes.items():
                    if process.returncode is None and isinstance(await self.greet(address), Welcome):
                        return address
                await asyncio.sleep(0.02)

    def other(self, address: str) -> str:
        return next(each for each in self.each if each != address)


class GatewayPeer:
    """The gateway's link, which submits again what was not placed."""

    def __init__(self, addresses: str) -> None:
        self.joins = 0
        self.waiting: dict[int, Submit] = {}
        self.messages: list[AnyMessage] = []
        self.link = Link(
            "dispatcher",
            addresses,
            hello("gateway", "gateway-0", "g"),
            accept=lambda _: "",
            on_ready=self._ready,
            on_message=self.messages.append,
            on_lost=lambda _: None,
        )
        self.task = asyncio.create_task(self.link.run())

    def _ready(self) -> None:
        self.joins += 1
        for submit in self.waiting.values():
            self.link.send(submit)

    def of(self, kind: type) -> list[AnyMessage]:
        return [message for message in self.messages if isinstance(message, kind)]


class WorkerPeer:
    """The worker's link; it runs what it is given and never ends it by itself."""

    def __init__(self, addresses: str, *, max_rows: int = 32) -> None:
        self.joins = 0
        self.runs: list[RowKey] = []
        self._seq = 0
        self._max_rows = max_rows
        self.ended: list[RowKey] = []
        self.link = DispatchLink(addresses, self._hello, self._joined, self._told, lambda: None, lambda: True)
        self.task = asyncio.create_task(self.link.run())
        self.beat = asyncio.create_task(self._beat())

    def _hello(self) -> Hello:
        return hello(
            "worker",
            "worker-0",
            "w",
            max_rows=self._max_rows,
            running=list(self.runs),
            flows=[RowFlow("t", "interactive")] * len(self.runs),
        )

    def _joined(self) -> None:
        self.joins += 1
        self._report()

    def _report(self) -> None:
        self._seq += 1
        ended, self.ended = self.ended, []
        self.link.send(report(self._seq, prefilled=list(self.runs), ended=ended))

    def end(self, row: RowKey) -> None:
        self.runs.remove(row)
        self.ended.append(row)
        self._report()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            self._report()

    def _told(self, message: AnyMessage) -> None:
        if isinstance(message, Run):
            row = RowKey(message.gateway, message.submit.sid)
            assert row not in self.runs, "run twice"
            self.runs.append(row)
            self._report()
