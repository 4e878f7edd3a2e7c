"""A worker process that stands for a scripted upstream, between a dispatcher's and a gateway's end."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuworker.wire.messages import End
from tests.backends.tgi_upstream import TGIUpstream
from tests.backends.upstreams import Upstream
from tests.worker.peers import DispatcherEnd, GatewayEnd
from tests.worker.support import SECRET, WorkerProcess, weights_make

KEY = "sk-of-the-upstream"


@dataclass
class Bench:
    """`start` the worker when the upstream's script is written."""

    worker: WorkerProcess
    dispatcher: DispatcherEnd
    digest: str
    upstream: Upstream
    gateways: list[GatewayEnd] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    async def start(
        self, *options: str, flavour: str = "vllm", key: str = KEY, waits: bool = True
    ) -> GatewayEnd:
        kind = "tgi" if isinstance(self.upstream, TGIUpstream) else "openai"
        arguments = ["--backend", kind, "--upstream-url", self.upstream.url, "--upstream-model", "echo-model"]
        if kind == "openai":
            arguments += ["--upstream-flavour", flavour]
        environment = {"PATH": "/usr/bin:/bin", "SLUICE_WIRE_SECRET": SECRET, "SLUICE_UPSTREAM_KEY": key}
        environment |= self.environment
        await self.worker.start(*arguments, *options, environment=environment)
        await self.dispatcher.until(lambda: self.dispatcher.reports)
        if waits:
            await self.until_ready()
        self.gateways.append(await GatewayEnd(self.worker.address).connect())
        return self.gateways[-1]

    async def until_ready(self) -> None:
        await self.dispatcher.until(lambda: not self.dispatcher.reports[-1].full)

    async def until_full(self) -> None:
        await self.dispatcher.until(lambda: self.dispatcher.reports[-1].full)

    async def until_back(self, since: int) -> None:
        """It was full after so many reports, and is not any more."""
        reports = self.dispatcher.reports
        await self.dispatcher.until(
            lambda: any(report.full for report in reports[since:]) and not reports[-1].full
        )

    def run(self, sid: int, text: str, **fields: object) -> None:
        fields = {"digest": self.digest} | fields
        self.dispatcher.send(self.gateways[0].run(sid, text, **fields))

    async def result(self, sid: int) -> tuple[str, End]:
        gateway = self.gateways[0]
        await gateway.until_ended(sid)
        return gateway.text(sid), gateway.ends[sid]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Socket paths are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="slx-") as name:
        yield Path(name)


async def _bench(folder: Path, upstream: Upstream) -> AsyncIterator[Bench]:
    digest = weights_make(folder / "weights")
    worker = WorkerProcess(folder, folder / "weights")
    dispatcher = await DispatcherEnd(worker.dispatch).start()
    bench = Bench(worker, dispatcher, digest, await upstream.start())
    yield bench
    for gateway in bench.gateways:
        await gateway.close()
    await worker.kill()
    await dispatcher.stop()
    await upstream.stop()


@pytest.fixture
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async for made in _bench(folder, Upstream()):
        yield made


@pytest.fixture
async def tgi(folder: Path) -> AsyncIterator[Bench]:
    async for made in _bench(folder, TGIUpstream()):
        yield made
