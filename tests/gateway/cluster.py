"""All that serves, twice: gateways behind a balancer, dispatchers, workers; with one PostgreSQL, one Valkey.

Each process can be stopped as an operator stops it, and started again.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from asgiref.sync import sync_to_async

from devservices.valkey import ValkeyServer
from tests.conftest import Database
from tests.gateway.balancer import Balancer
from tests.gateway.durable import Customer, customers_make
from tests.gateway.harness import MODEL, GatewayProcess, gateway_started
from tests.gateway.peers import SECRET
from tests.gateway.proxy import Relay
from tests.gateway.raw import request
from tests.gateway.weights import store_make

STEP_MS = 50
PATIENCE_S = 30.0


@dataclass
class Gateway:
    """One that runs, and what ends it."""

    process: GatewayProcess
    stack: AsyncExitStack


@dataclass
class Cluster:
    """`folder` holds sockets, weights and the workers' spools."""

    folder: Path
    database: Database
    relay: Relay  # to PostgreSQL
    valkey: ValkeyServer
    balancer: Balancer = field(default_factory=Balancer)
    gateways: list[Gateway] = field(default_factory=list)
    dispatchers: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    workers: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    store: asyncio.subprocess.Process | None = None
    digest: str = ""
    customer: Customer | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.balancer.port}/v1"

    @property
    def dispatch_addresses(self) -> str:
        return ",".join(f"unix:{self.folder}/dispatch-{number}" for number in range(2))

    async def start(self) -> None:
        self.digest = store_make(self.folder / "weights")
        await self.store_start()
        await self.relay.start()
        await self.balancer.start()
        for number in range(2):
            await self.dispatcher_start(number)
        for number in range(2):
            await self.worker_start(number)
        first = await self._gateway(0)
        (self.customer,) = await sync_to_async(customers_make)(first.process, 1)
        self.gateways = [first, await self._gateway(1)]
        for gateway in self.gateways:
            await self._serving(gateway)
        self._balance()

    async def stop(self) -> None:
        await self.balancer.stop()
        for gateway in self.gateways:
            await gateway.stack.aclose()
        for process in (*self.workers.values(), *self.dispatchers.values()):
            await _end(process)
        if self.store is not None:
            await _end(self.store)
        await self.relay.cut()
        for log in sorted(self.folder.glob("log-*")):
            sys.stdout.write(f"== {log.name}\n{log.read_text()}")

    # -- gateways -----------------------------------------------------------------------------------------

    async def gateway_restart(self, number: int) -> None:
        old = self.gateways[number]
        old.process.process.send_signal(signal.SIGTERM)
        await old.process.process.wait()
        await old.stack.aclose()
        self.gateways[number] = await self._gateway(number)
        await self._serving(self.gateways[number])
        self._balance()

    async def _gateway(self, number: int) -> Gateway:
        stack = AsyncExitStack()
        environment = {
            "SLUICE_DISPATCH": self.dispatch_addresses,
            "SLUICE_GATEWAY_ID": f"gateway-{number}",
            "SLUICE_WEIGHTS": str(self.folder / "weights"),
        }
        process = await stack.enter_async_context(
            gateway_started(
                database_url=self.relay.url,
                redis_url=self.valkey.url,
                environment=environment,
                peers=False,
            )
        )
        return Gateway(process, stack)

    async def _serving(self, gateway: Gateway) -> None:
        """It would answer this customer's next request."""
        assert self.customer is not None
        authorization, path = self.customer.authorization, f"/v1/models/{MODEL}"

        async def serves() -> bool:
            with suppress(OSError):
                known = await request(gateway.process.port, "GET", path, b"", authorization)
                ready = await request(gateway.process.port, "GET", "/readyz")
                return (known.status, ready.status) == (200, 200)
            return False

        await _until(serves, f"gateway on {gateway.process.port}")

    def _balance(self) -> None:
        self.balancer.ports = [gateway.process.port for gateway in self.gateways]

    # -- dispatchers and workers --------------------------------------------------------------------------

    async def dispatcher_start(self, number: int) -> None:
        address = self.folder / f"dispatch-{number}"
        arguments = ["dispatch", "--id", f"dispatcher-{number}", "--listen", f"unix:{address}"]
        self.dispatchers[number] = await self._spawn(f"dispatch-{number}", arguments)
        await _until(lambda: _listens(address), f"dispatcher-{number}")

    async def dispatcher_restart(self, number: int) -> None:
        await _finish(self.dispatchers[number])
        await self.dispatcher_start(number)

    async def worker_start(self, number: int) -> None:
        name = f"worker-{number}"
        arguments = ["gpuworker", "--id", name, "--dispatch", self.dispatch_addresses, "--model", MODEL]
        arguments += ["--listen", f"unix:{self.folder}/{name}", "--spool", str(self.folder / f"spool-{name}")]
        arguments += ["--weights", str(self.folder / "weights" / self.digest), "--backend", "scripted"]
        arguments += ["--step-ms", str(STEP_MS), "--target-itl-ms", "off"]
        self.workers[number] = await self._spawn(name, arguments)
        await _until(lambda: _listens(self.folder / name), name)

    async def worker_restart(self, number: int) -> None:
        await _finish(self.workers[number])
        await self.worker_start(number)

    async def _spawn(self, name: str, arguments: list[str]) -> asyncio.subprocess.Process:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_DISPATCH": self.dispatch_addresses,
            "REDIS_URL": self.valkey.url,
        }
        with (self.folder / f"log-{name}").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments, env=environment, stdout=log, stderr=log
            )

    # -- stores -------------------------------------------------------------------------------------------

    async def store_start(self) -> None:
        """Valkey, with what it held."""
        server = self.valkey
        self.store = store = await asyncio.create_subprocess_exec(
            *server.command, cwd=server.home, env=server.environment, stdout=subprocess.DEVNULL
        )
        await _until(lambda: asyncio.to_thread(server.is_ready, store.pid), "valkey")

    async def store_restart(self) -> None:
        assert self.store is not None
        await _finish(self.store)
        await self.store_start()

    async def postgres_restart(self, away_s: float) -> None:
        """As all who use it see that: connections end, and for a while there are none."""
        await self.relay.cut()
        await asyncio.sleep(away_s)
        await self.relay.start()

    async def billed(self) -> dict[str, int]:
        """How many usage rows each request has."""
        query = "SELECT request_id::text, count(*) FROM billing_usageevent GROUP BY 1"
        async with await psycopg.AsyncConnection.connect(self.database.admin_url) as conn:
            return dict(await (await conn.execute(query)).fetchall())


@asynccontextmanager
async def cluster_started(folder: Path, database: Database) -> AsyncIterator[Cluster]:
    valkey = ValkeyServer.prepare(folder / "valkey")
    cluster = Cluster(folder, database, Relay(database.gateway_url), valkey)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
        valkey.release()


async def _listens(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


async def _until(holds: Callable[[], Awaitable[Any]], what: str) -> None:
    for _ in range(int(PATIENCE_S / 0.05)):
        if await holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what} never came up")


async def _finish(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 0


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
