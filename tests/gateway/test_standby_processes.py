"""The active dispatcher goes under load, real processes: streams go on, who waits is served, none twice."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from devservices.valkey import ValkeyServer
from gpuworker.wire.connection import connect
from gpuworker.wire.messages import PROTOCOL_VERSION, AnyMessage, Hello, UsageCheckpoint, Welcome
from gpuworker.wire.records import records_read
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import SECRET
from tests.gateway.replica_fleet import Seen, stream, until

pytestmark = pytest.mark.asyncio(loop_scope="package")

STEP_MS, TOKENS, ROWS, EARLY, LATE = 50, 60, 8, 12, 3
REQUESTS = EARLY + LATE


class Fleet:
    """A gateway, a worker with room for eight, two dispatchers."""

    def __init__(self, gateway: GatewayProcess, each: tuple[str, ...], redis_url: str) -> None:
        self.gateway = gateway
        self.each = each
        self.dispatchers: dict[str, asyncio.subprocess.Process] = {}
        self._redis_url = redis_url

    async def start(self, stack: AsyncExitStack) -> None:
        gateway = self.gateway
        for address in self.each:
            arguments = ("dispatch", "--listen", address)
            self.dispatchers[address] = await self._spawn(stack, *arguments)
        await self._spawn(
            stack,
            *("gpuworker", "--id", "worker-0", "--dispatch", ",".join(self.each)),
            *("--listen", f"unix:{gateway.folder}/worker-0", "--model", MODEL),
            *("--weights", str(gateway.folder / "weights" / gateway.digest)),
            *("--spool", str(gateway.folder / "spool-worker"), "--backend", "scripted"),
            *("--step-ms", str(STEP_MS), "--target-itl-ms", "off", "--max-rows", str(ROWS)),
        )
        await gateway.ready(within_s=30)

    async def _spawn(self, stack: AsyncExitStack, *arguments: str) -> asyncio.subprocess.Process:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_DISPATCH": ",".join(self.each),
            "REDIS_URL": self._redis_url,
        }
        with (self.gateway.folder / f"log-{arguments[0]}").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments, env=environment, stdout=log, stderr=log
            )
        stack.push_async_callback(_kill, process)
        return process

    async def active(self, *, besides: str = "") -> str:
        async with asyncio.timeout(10):
            while True:
                for address in self.each:
                    if address != besides and await _welcomes(address):
                        return address
                await asyncio.sleep(0.02)

    def computed(self) -> Counter[str]:
        """How often the worker ran each request to its end."""
        ends: Counter[str] = Counter()
        for path in (self.gateway.folder / "spool-worker").rglob("*"):
            if path.is_file() and path.stat().st_size > 8:
                ends.update(_ends(path))
        return ends


def _ends(path: Path) -> list[str]:
    with path.open("rb") as file:
        try:
            records = [
                msgspec.json.decode(record.payload, type=UsageCheckpoint)
                for record in records_read(file, 0, path.stat().st_size)
            ]
        except msgspec.DecodeError:
            return []
    return [record.request_id for record in records if record.reason]


async def _welcomes(address: str) -> bool:
    answer: asyncio.Future[AnyMessage | None] = asyncio.get_running_loop().create_future()

    def received(_: object, message: AnyMessage) -> None:
        if not answer.done():
            answer.set_result(message)

    try:
        connection = await connect(
            address, received, lambda *_: None if answer.done() else answer.set_result(None)
        )
    except OSError:
        return False
    greeting = Hello(
        version=PROTOCOL_VERSION, role="controller", id="c", incarnation=f"c{id(answer)}", secret=SECRET
    )
    connection.send(greeting)
    said = await answer
    connection.abort("heard enough")
    return isinstance(said, Welcome)


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(tmp_path: Path, valkey: ValkeyServer) -> AsyncIterator[Fleet]:
    each = (f"unix:{tmp_path}/a", f"unix:{tmp_path}/b")
    told = {"SLUICE_DISPATCH": ",".join(each)}
    async with (
        AsyncExitStack() as opened,
        gateway_started(limits=QUICK, peers=False, environment=told) as gateway,
    ):
        running = Fleet(gateway, each, valkey.url)
        await running.start(opened)
        yield running
        await opened.aclose()
        for name in ("dispatch", "gpuworker"):
            sys.stdout.write((gateway.folder / f"log-{name}").read_text())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_the_active_dispatcher_goes_under_load(fleet: Fleet, how: signal.Signals) -> None:
    # Given eight streams that run and four requests that wait
    keys = fleet.gateway.keys
    async with AsyncOpenAI(base_url=fleet.gateway.base_url, api_key=keys["full"], max_retries=0) as client:
        seen = [Seen() for _ in range(REQUESTS)]
        tasks = [asyncio.create_task(stream(client, n, seen[n])) for n in range(EARLY)]
        await until(lambda: sum(bool(one.moments) for one in seen) == ROWS)
        active = await fleet.active()
        # When the active one goes
        fleet.dispatchers[active].send_signal(how)
        gone = time.monotonic()
        # And more come before the other one serves
        tasks += [asyncio.create_task(stream(client, n, seen[n])) for n in range(EARLY, REQUESTS)]
        # Then the other one serves in time
        other = await fleet.active(besides=active)
        print(f"{how.name}: {other[-1]} active after {time.monotonic() - gone:.2f} s")
        assert time.monotonic() - gone <= 2.0
        async with asyncio.timeout(40):
            await asyncio.gather(*tasks)
    # And every answer is whole, without a long gap where it ran
    for number, one in enumerate(seen):
        expected = (f"{number:02}" + "abcdefghijklmnopqrstuvwxyz") * 3
        assert (one.ending, one.text) == ("length", expected[:TOKENS])
        gaps = [after - before for before, after in zip(one.moments, one.moments[1:], strict=False)]
        assert max(gaps) < 1.5
    # And everything ran and was billed once
    await until(lambda: len(fleet.computed()) == len(fleet.gateway.usage()) == REQUESTS)
    assert fleet.computed() == Counter(dict.fromkeys((one.request_id for one in seen), 1))
