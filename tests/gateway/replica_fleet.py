"""A gateway, a dispatcher and workers as real processes, whose connections can fail, and what clients see."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

import openai
from openai import AsyncOpenAI

from gpuworker.wire.connection import Connection, connect
from gpuworker.wire.messages import PROTOCOL_VERSION, AnyMessage, FleetState, Hello, new_incarnation
from tests.gateway.failing_network import FailingNetwork
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import SECRET

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Seen:
    """One stream as its client saw it; moments are monotonic seconds."""

    text: str = ""
    moments: list[float] = field(default_factory=list)
    request_id: str = ""
    ending: str = ""
    ended_at: float = 0.0

    def first_after(self, moment: float) -> float:
        return min((at for at in self.moments if at > moment), default=float("inf"))

    def gaps(self, since: float, until: float) -> list[float]:
        inside = [at for at in self.moments if since <= at <= until]
        return [after - before for before, after in pairwise(inside)]


async def stream(client: AsyncOpenAI, number: int, seen: Seen, tokens: int = 60) -> None:
    """What comes of it is `said`."""
    extra = {"ignore_eos": True}
    try:
        async with await client.completions.create(
            model=MODEL, prompt=f"{number:02}{ALPHABET}", max_tokens=tokens, stream=True, extra_body=extra
        ) as opened:
            async for chunk in opened:
                seen.request_id = str(UUID(chunk.id.removeprefix("cmpl-")))
                if chunk.choices and chunk.choices[0].text:
                    seen.text += chunk.choices[0].text
                    seen.moments.append(time.monotonic())
                if chunk.choices and chunk.choices[0].finish_reason:
                    seen.ending = chunk.choices[0].finish_reason
    except openai.APIError as error:
        seen.ending = str(error.code)
    seen.ended_at = time.monotonic()


def said(number: int, tokens: int) -> str:
    """The scripted backend repeats the prompt, over and over."""
    prompt = f"{number:02}{ALPHABET}"
    return (prompt * (tokens // len(prompt) + 1))[:tokens]


def part_95(gaps: list[float]) -> float:
    return sorted(gaps)[int(len(gaps) * 0.95)]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


class ReplicaFleet:
    """`state` is what the dispatcher says of the fleet, twice a second."""

    def __init__(self, gateway: GatewayProcess, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self.state: FleetState | None = None
        self._folder = gateway.folder
        self._stack = stack

    def client(self, key: str) -> AsyncOpenAI:
        keys = self.gateway.keys
        return AsyncOpenAI(base_url=self.gateway.base_url, api_key=keys[key], max_retries=0)

    async def dispatcher(self) -> asyncio.subprocess.Process:
        """Started, at the same address every time, and watched."""
        process = await self._spawn("dispatch")
        connection: Connection | None = None
        async with asyncio.timeout(20):
            while connection is None:
                try:
                    connection = await connect(self.gateway.dispatcher.address, self._told, lambda *_: None)
                except OSError:
                    await asyncio.sleep(0.02)
        incarnation = new_incarnation()
        connection.send(
            Hello(version=PROTOCOL_VERSION, role="controller", id="c", incarnation=incarnation, secret=SECRET)
        )
        self._stack.callback(connection.abort, "heard enough")
        return process

    async def worker(
        self, name: str, *, step_ms: int, max_rows: int = 64, dispatcher: str = "d"
    ) -> asyncio.subprocess.Process:
        """Started, and listening. It joins when somebody listens at the socket `dispatcher`."""
        process = await self._spawn(
            "gpuworker",
            *("--id", name, "--dispatch", f"unix:{self._folder / dispatcher}"),
            *("--listen", f"unix:{self._folder / name}", "--model", MODEL),
            *("--weights", str(self._folder / "weights" / self.gateway.digest)),
            *("--spool", str(self._folder / f"spool-{name}"), "--backend", "scripted"),
            *("--step-ms", str(step_ms), "--target-itl-ms", "off", "--max-rows", str(max_rows)),
        )
        await until(lambda: (self._folder / name).exists())
        return process

    def network(self, front: str, back: str) -> FailingNetwork:
        """Between two sockets; not open yet."""
        network = FailingNetwork(self._folder / front, self._folder / back)
        self._stack.push_async_callback(network.close)
        return network

    async def network_before(self, worker: str) -> FailingNetwork:
        """Takes the address of a worker that did not join yet: gateways reach it through it alone."""
        (self._folder / worker).rename(self._folder / f"{worker}-behind")
        network = self.network(worker, f"{worker}-behind")
        await network.open()
        return network

    def rows(self, worker: str) -> int:
        """That it runs; -1: the dispatcher does not know it, or it is not ready."""
        for view in self.state.workers if self.state else ():
            if view.id == worker and view.state == "ready":
                return view.running + view.waiting
        return -1

    def _told(self, _: Connection, message: AnyMessage) -> None:
        if isinstance(message, FleetState):
            self.state = message

    async def _spawn(self, *arguments: str) -> asyncio.subprocess.Process:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_DISPATCH": self.gateway.dispatcher.address,
        }
        with (self._folder / f"log-{arguments[0]}").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments, env=environment, stdout=log, stderr=log
            )
        self._stack.push_async_callback(_kill, process)
        return process


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@asynccontextmanager
async def replica_fleet_started() -> AsyncIterator[ReplicaFleet]:
    async with AsyncExitStack() as opened, gateway_started(limits=QUICK, peers=False) as gateway:
        yield ReplicaFleet(gateway, opened)
        await opened.aclose()
        for name in ("dispatch", "gpuworker"):
            sys.stdout.write((gateway.folder / f"log-{name}").read_text())
