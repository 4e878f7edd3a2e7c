"""A gateway, a dispatcher and a worker as processes that speak TLS: requests pass, strangers do not."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace
from openai import AsyncOpenAI

from devservices.wire_certificates import certificates_make
from gpuworker.wire.connection import connect
from gpuworker.wire.messages import PROTOCOL_VERSION, AnyMessage, Hello, Refusal, Welcome
from gpuworker.wire.tls import TLS_SETTINGS, WireTls, tls_load
from tests.gateway.harness import MODEL, GatewayProcess, gateway_started
from tests.gateway.peers import SECRET
from tests.wire.tls_ends import free_address

pytestmark = pytest.mark.asyncio(loop_scope="package")

CLOSED = "closed"


@dataclass
class Fleet:
    """`certificates` is the folder of their authority."""

    gateway: GatewayProcess
    certificates: Path
    dispatcher: str
    worker: str

    async def spawn(
        self, stack: AsyncExitStack, certificate: str, *arguments: str, is_plain: bool = False
    ) -> Path:
        """The process's log."""
        log = self.gateway.folder / f"log-{certificate.replace('/', '-')}"
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_DISPATCH": self.dispatcher,
            **({} if is_plain else files_of(self.certificates, certificate)),
        }
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments, env=environment, stdout=file, stderr=file
            )
        stack.push_async_callback(_kill, process, log)
        return log

    async def worker_spawn(
        self, stack: AsyncExitStack, name: str, listen: str, dispatcher: str, *, is_plain: bool = False
    ) -> Path:
        gateway = self.gateway
        return await self.spawn(
            stack,
            f"worker/{name}",
            *("gpuworker", "--id", name, "--dispatch", dispatcher, "--listen", listen, "--model", MODEL),
            *("--weights", str(gateway.folder / "weights" / gateway.digest), "--gateway", "gateway-0"),
            *("--spool", str(gateway.folder / f"spool-{name}"), "--backend", "scripted", "--step-ms", "5"),
            is_plain=is_plain,
        )


def files_of(folder: Path, name: str) -> dict[str, str]:
    (path,) = certificates_make(folder, [name])
    return dict(zip(TLS_SETTINGS, map(str, (path, path.with_suffix(".key"), folder / "ca.pem")), strict=True))


def tls_of(folder: Path, name: str) -> WireTls | None:
    return tls_load(*files_of(folder, name).values())


async def _kill(process: asyncio.subprocess.Process, log: Path) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
    sys.stdout.write(f"== {log.name}\n{await asyncio.to_thread(log.read_text)}")


async def said_in(log: Path, word: str) -> None:
    for _ in range(400):
        if word in await asyncio.to_thread(log.read_text):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{log.name} never said {word!r}")


async def answer(address: str, role: str, tls: WireTls | None, greeting: Hello) -> str:
    """What the listener of that role says to it: `welcome`, the code of its refusal, or CLOSED."""
    said: asyncio.Queue[AnyMessage | None] = asyncio.Queue()

    def received(_: object, message: AnyMessage) -> None:
        said.put_nowait(message)

    async with asyncio.timeout(10):
        try:
            connection = await connect(
                address, received, lambda *_: said.put_nowait(None), tls=tls, role=role
            )
        except OSError:
            return CLOSED
        connection.send(greeting)
        first = await said.get()
        connection.abort("heard enough")
    match first:
        case Welcome():
            return "welcome"
        case Refusal(code):
            return code
    return CLOSED


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    certificates, dispatcher, worker = tmp_path / "tls", free_address(), free_address()
    told = {"SLUICE_DISPATCH": dispatcher, **files_of(certificates, "gateway/gateway-0")}
    async with AsyncExitStack() as opened, gateway_started(peers=False, environment=told) as gateway:
        running = Fleet(gateway, certificates, dispatcher, worker)
        await running.spawn(opened, "dispatcher/*", "dispatch", "--listen", dispatcher)
        await running.worker_spawn(opened, "worker-0", worker, dispatcher)
        await gateway.ready(within_s=30)
        yield running
        await opened.aclose()


async def test_requests_pass_and_strangers_do_not(fleet: Fleet, tmp_path: Path) -> None:
    keys = fleet.gateway.keys
    async with AsyncOpenAI(base_url=fleet.gateway.base_url, api_key=keys["full"], max_retries=0) as client:
        made = await client.completions.create(model=MODEL, prompt="abc", max_tokens=9)
    assert made.choices[0].text == "abc" * 3
    named = [f"gateway-{number}" for number in range(2)]
    own = {name: tls_of(fleet.certificates, f"gateway/{name}") for name in named}
    other = tls_of(tmp_path / "other", "gateway/gateway-0")
    hello = Hello(version=PROTOCOL_VERSION, role="gateway", id="gateway-0", incarnation="x", secret=SECRET)
    second = replace(hello, id="gateway-1")
    addresses = {"worker": fleet.worker, "dispatcher": fleet.dispatcher}
    cases: list[tuple[str, WireTls | None, Hello, str]] = [
        ("worker", own["gateway-0"], hello, "welcome"),
        ("worker", own["gateway-0"], replace(hello, secret="wrong"), "bad_secret"),
        ("worker", own["gateway-1"], hello, "bad_certificate"),
        ("worker", own["gateway-1"], second, "unknown_gateway"),
        ("worker", own["gateway-0"], replace(hello, role="controller"), "bad_certificate"),
        ("worker", other, hello, CLOSED),
        ("worker", None, hello, CLOSED),
        ("dispatcher", own["gateway-1"], second, "welcome"),
        ("dispatcher", own["gateway-1"], replace(second, role="worker"), "bad_certificate"),
        ("dispatcher", None, hello, CLOSED),
    ]
    for role, tls, greeting, expected in cases:
        assert await answer(addresses[role], role, tls, greeting) == expected


async def test_a_worker_says_why_it_does_not_join(fleet: Fleet, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        # A dispatcher whose certificate is a gateway's
        impostor = free_address()
        await fleet.spawn(stack, "gateway/queen", "dispatch", "--listen", impostor)
        log = await fleet.worker_spawn(stack, "worker-1", free_address(), impostor)
        await said_in(log, "names ('gateway/queen',), not dispatcher/*; trying again")
        # One whose certificate the dispatcher does not accept
        strange = Fleet(fleet.gateway, tmp_path / "other", fleet.dispatcher, fleet.worker)
        log = await strange.worker_spawn(stack, "worker-2", free_address(), fleet.dispatcher)
        await said_in(log, "its certificate is not accepted")
        # And one that does not speak TLS
        log = await fleet.worker_spawn(stack, "worker-3", free_address(), fleet.dispatcher, is_plain=True)
        await said_in(log, "no answer to the greeting: closed by peer; trying again")
