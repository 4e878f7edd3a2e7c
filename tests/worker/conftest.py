"""A dispatcher's end of the wire and a worker process, both in a folder with a short path."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.worker.peers import DispatcherEnd, GatewayEnd
from tests.worker.support import WorkerProcess, weights_make


@dataclass
class Stage:
    """A running worker that joined its dispatcher, by `start`; `digest` is what it serves."""

    worker: WorkerProcess
    dispatcher: DispatcherEnd
    digest: str
    gateways: list[GatewayEnd] = field(default_factory=list)

    async def start(self, *options: str) -> None:
        await self.worker.start(*options)
        await self.dispatcher.until(lambda: self.dispatcher.reports)

    async def gateway(self) -> GatewayEnd:
        return await self.absent_gateway().connect()

    def absent_gateway(self) -> GatewayEnd:
        self.gateways.append(GatewayEnd(self.worker.address))
        return self.gateways[-1]

    def run(self, gateway: GatewayEnd, sid: int, text: str, **fields: object) -> None:
        self.dispatcher.send(gateway.run(sid, text, **({"digest": self.digest} | fields)))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Socket paths are limited to 107 bytes: pytest's own folders may be too deep."""
    with tempfile.TemporaryDirectory(prefix="slw-") as name:
        yield Path(name)


@pytest.fixture
async def stage(folder: Path) -> AsyncIterator[Stage]:
    digest = weights_make(folder / "weights")
    worker = WorkerProcess(folder, folder / "weights")
    dispatcher = await DispatcherEnd(worker.dispatch).start()
    stage = Stage(worker, dispatcher, digest)
    yield stage
    for gateway in stage.gateways:
        await gateway.close()
    await worker.kill()
    await dispatcher.stop()
