"""Thirty sequences in flight and their worker gone, with real processes: what may go on does, all are billed.

`kill -9` ends the connection, SIGSTOP leaves it open: then silence says it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from uuid import UUID

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import SECRET

pytestmark = pytest.mark.asyncio(loop_scope="package")

STEP_MS = 50
BEGUN, FRESH = 24, 6
TOKENS = 60


@dataclass
class Seen:
    """One stream as its client saw it; moments are monotonic seconds."""

    text: str = ""
    moments: list[float] = field(default_factory=list)
    request_id: str = ""
    ending: str = ""

    def first_after(self, moment: float) -> float:
        return min((at for at in self.moments if at > moment), default=float("inf"))


class Fleet:
    """One gateway, one dispatcher, two workers; the second comes when the first has the load."""

    def __init__(self, gateway: GatewayProcess, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self._stack = stack

    async def spawn(self, *arguments: str) -> asyncio.subprocess.Process:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_DISPATCH": self.gateway.dispatcher.address,
        }
        with (self.gateway.folder / f"log-{arguments[0]}").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments, env=environment, stdout=log, stderr=log
            )
        self._stack.push_async_callback(_kill, process)
        return process

    async def worker(self, name: str) -> asyncio.subprocess.Process:
        gateway = self.gateway
        process = await self.spawn(
            "gpuworker",
            *("--id", name, "--dispatch", gateway.dispatcher.address),
            *("--listen", f"unix:{gateway.folder}/{name}", "--model", MODEL),
            *("--weights", str(gateway.folder / "weights" / gateway.digest)),
            *("--spool", str(gateway.folder / f"spool-{name}"), "--backend", "scripted"),
            *("--step-ms", str(STEP_MS), "--target-itl-ms", "off"),
        )
        await until(lambda: (gateway.folder / name).exists())
        await gateway.ready(within_s=20)
        return process

    def client(self, key: str) -> AsyncOpenAI:
        keys = self.gateway.keys
        return AsyncOpenAI(base_url=self.gateway.base_url, api_key=keys[key], max_retries=0)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest_asyncio.fixture(loop_scope="package")
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as opened, gateway_started(limits=QUICK, peers=False) as gateway:
        running = Fleet(gateway, opened)
        await running.spawn("dispatch")
        yield running
        await opened.aclose()
        for name in ("dispatch", "gpuworker"):
            sys.stdout.write((gateway.folder / f"log-{name}").read_text())


async def stream(client: AsyncOpenAI, number: int, seen: Seen) -> None:
    prompt = f"{number:02}" + "abcdefghijklmnopqrstuvwxyz"
    try:
        opened = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in opened:
            seen.request_id = str(UUID(chunk.id.removeprefix("cmpl-")))
            if chunk.choices and chunk.choices[0].text:
                seen.text += chunk.choices[0].text
                seen.moments.append(time.monotonic())
            if chunk.choices and chunk.choices[0].finish_reason:
                seen.ending = chunk.choices[0].finish_reason
    except openai.APIError as error:
        seen.ending = str(error.code)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("key", ["continuing", "full"])
async def test_thirty_in_flight_when_their_worker_goes(fleet: Fleet, how: signal.Signals, key: str) -> None:
    # Given thirty sequences on one worker, six of them without a token, and another worker
    doomed = await fleet.worker("worker-0")
    async with fleet.client(key) as client:
        seen = [Seen() for _ in range(BEGUN + FRESH)]
        tasks = [asyncio.create_task(stream(client, n, seen[n])) for n in range(BEGUN)]
        await until(lambda: all(one.moments for one in seen[:BEGUN]))
        tasks += [asyncio.create_task(stream(client, n, seen[n])) for n in range(BEGUN, BEGUN + FRESH)]
        await asyncio.sleep(STEP_MS / 2000)
        doomed.send_signal(how)
        gone = time.monotonic()
        other = await fleet.worker("worker-1")
        ready = time.monotonic()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert other.returncode is None
    # Then those without a token are served as soon as there is somebody to serve them
    fresh = [one for one in seen if one.first_after(gone) == (one.moments or [0.0])[0]]
    assert fresh
    detected = 1.75 if how is signal.SIGSTOP else 0.0
    for one in fresh:
        assert one.ending == "length"
        assert one.moments[0] - max(ready, gone + detected) <= 3
    # And the others go on within four seconds, without a token missing or doubled, or end with a word
    for number, one in enumerate(seen):
        if one in fresh or key == "continuing":
            expected = (f"{number:02}" + "abcdefghijklmnopqrstuvwxyz") * 3
            assert (one.ending, one.text) == ("length", expected[:TOKENS])
            assert one.first_after(gone) - max(ready, gone + detected) <= 4
        else:
            assert one.ending == "replica_lost"
    # And all thirty are one row of usage each
    records = [fleet.gateway.usage_of(one.request_id) for one in seen]
    outcomes = {True: "completed", False: "replica_lost"}
    assert [r.outcome for r in records] == [outcomes[one.ending == "length"] for one in seen]
    assert [r.output_tokens for r in records] == [len(one.text) for one in seen]
    # Each of which says how many replicas had it, and why the first one has it no more
    for one, record in zip(seen, records, strict=True):
        if one not in fresh:  # those may not have been placed yet
            assert record.replica_attempts == (2 if one.ending == "length" else 1)
            assert record.lost_cause in (("silent",) if how is signal.SIGSTOP else ("crashed", "disconnected"))
    assert len(fleet.gateway.usage()) == BEGUN + FRESH
    if how is signal.SIGSTOP:
        doomed.send_signal(signal.SIGCONT)
