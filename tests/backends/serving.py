"""External replicas as clients meet them: a gateway and a dispatcher, and workers of scripted servers."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import openai
from openai import AsyncOpenAI

from tests.backends.tgi_upstream import TGIUpstream
from tests.backends.upstreams import Upstream
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import SECRET
from tests.gateway.weights import tokenizer_make

PATIENCE_S = 20.0
KEY = "sk-of-this-upstream-alone"
FAST = ("--upstream-first-token-s", "0.5", "--upstream-silence-s", "0.5", "--upstream-check-s", "0.2")


@dataclass
class Seen:
    """One stream as its client saw it."""

    text: str = ""
    request_id: str = ""
    ending: str = ""
    message: str = ""


@dataclass
class Platform:
    """`worker` lets a server answer; its worker is called upstream-NAME."""

    gateway: GatewayProcess
    stack: AsyncExitStack
    upstreams: dict[str, Upstream] = field(default_factory=dict)

    async def worker(self, name: str, *options: str, flavour: str = "vllm") -> Upstream:
        upstream = await (TGIUpstream() if flavour == "tgi" else Upstream()).start()
        upstream.script.say = tokenizer_make().decode if flavour == "vllm" else upstream.script.say
        self.upstreams[name] = upstream
        self.stack.push_async_callback(upstream.stop)
        kind = ("tgi",) if flavour == "tgi" else ("openai", "--upstream-flavour", flavour)
        folder = self.gateway.folder
        await self.spawn(
            name,
            *("gpuworker", "--id", f"upstream-{name}", "--model", MODEL, "--listen", f"unix:{folder}/{name}"),
            *("--dispatch", self.gateway.dispatcher.address, "--spool", str(folder / f"spool-{name}")),
            *("--weights", str(folder / "weights" / self.gateway.digest), "--backend", *kind),
            *("--upstream-url", upstream.url, "--upstream-model", upstream.script.model, *FAST, *options),
        )
        await until(lambda: "the upstream is used" in self.log(name))
        await self.gateway.ready(within_s=PATIENCE_S)
        return upstream

    async def spawn(self, name: str, *arguments: str) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_DISPATCH": self.gateway.dispatcher.address,
            "SLUICE_UPSTREAM_KEY": KEY,
        }
        with self._log(name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments, env=environment, stdout=log, stderr=log
            )
        self.stack.push_async_callback(_kill, process)

    def log(self, name: str) -> str:
        return self._log(name).read_text()

    def _log(self, name: str) -> Path:
        return self.gateway.folder / f"log-{name}"

    def client(self, key: str = "full") -> AsyncOpenAI:
        keys = self.gateway.keys
        return AsyncOpenAI(base_url=self.gateway.base_url, api_key=keys[key], max_retries=0)

    def record(self, seen: Seen) -> Any:
        return self.gateway.usage_of(seen.request_id)


async def stream(client: AsyncOpenAI, prompt: str, seen: Seen, **more: Any) -> Seen:
    """Filled while it runs."""
    try:
        opened = await client.completions.create(model=MODEL, prompt=prompt, stream=True, **more)
        async for chunk in opened:
            seen.request_id = str(UUID(chunk.id.removeprefix("cmpl-")))
            for choice in chunk.choices:
                seen.text += choice.text
                seen.ending = choice.finish_reason or seen.ending
    except openai.APIStatusError as error:
        seen.ending, seen.message = f"{error.status_code} {error.code}", error.message
    except openai.APIError as error:
        seen.ending, seen.message = str(error.code), error.message
    return seen


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@asynccontextmanager
async def platform_started(**options: Any) -> AsyncIterator[Platform]:
    async with AsyncExitStack() as stack, gateway_started(limits=QUICK, peers=False, **options) as gateway:
        platform = Platform(gateway, stack)
        await platform.spawn("dispatch", "dispatch")
        await until(lambda: "listening" in platform.log("dispatch"))
        yield platform
        await stack.aclose()
        for name in ("dispatch", *platform.upstreams):
            sys.stdout.write(f"== {name}\n{platform.log(name)}")
