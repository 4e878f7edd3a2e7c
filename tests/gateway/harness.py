"""Starts a gateway process between a real HTTP port and peers that the caller speaks through."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from billing.contracts import UsageRecord
from gpuworker.wire.records import records_read
from tenants.keys import key_generate
from tests.gateway.peers import SECRET, Dispatcher, WorkerPeer, socket_address
from tests.gateway.raw import RawConnection, Response, metric, request
from tests.gateway.weights import CONTEXT_TOKENS, TEMPLATE, store_make

MODEL = "tiny"
SMALLER = "tinier"
QUICK = {"settle_s": 1.0, "worker_unreachable_s": 1.0, "watchdog_interval_s": 0.1}  # so that waits are short
NO_VALKEY = "redis://127.0.0.1:1/0"
NO_POSTGRES = "postgresql://gateway@127.0.0.1:1/none?connect_timeout=1"


@dataclass
class GatewayProcess:
    """A running gateway and the peers around it."""

    port: int
    process: asyncio.subprocess.Process
    dispatcher: Dispatcher
    worker: WorkerPeer
    digest: str
    folder: Path
    log: Path
    keys: dict[str, str] = field(default_factory=dict)
    idle_tasks: float = 0.0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def key(self) -> str:
        return self.keys["full"]

    def authorization(self, name: str = "full") -> str:
        return f"authorization: Bearer {self.keys[name]}"

    async def post(self, path: str, body: Any, *headers: str) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await request(self.port, "POST", path, data, *(headers or (self.authorization(),)))

    async def metric(self, name: str) -> float:
        return await metric(self.port, f"sluice_gateway_{name}")

    def usage(self) -> list[UsageRecord]:
        """Every record in the spool; PostgreSQL has acknowledged none."""
        records = []
        for segment in sorted(p for p in (self.folder / "spool" / "usage").iterdir() if p.stat().st_size > 8):
            with segment.open("rb") as file:
                try:
                    records += [
                        msgspec.json.decode(record.payload, type=UsageRecord)
                        for record in records_read(file, 0, segment.stat().st_size)
                    ]
                except msgspec.DecodeError:
                    continue
        return records

    def usage_of(self, request_id: str) -> UsageRecord:
        (record,) = [record for record in self.usage() if record.request_id == request_id]
        return record

    def peers_reset(self) -> None:
        queues: list[asyncio.Queue[Any]] = [self.dispatcher.submits, self.dispatcher.cancels]
        for queue in (*queues, self.worker.cancels, self.worker.pauses):
            while not queue.empty():
                queue.get_nowait()
        self.worker.answers_cancels = True

    async def ready(self, *, within_s: float = 5.0) -> None:
        """Also needed between tests: while others ran, the peers' event loop stood still."""
        for _ in range(int(within_s / 0.02)):
            if (await request(self.port, "GET", "/readyz")).status == 200:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the gateway is not ready")

    async def idle(self) -> None:
        """Wait until nothing is held any more; fails when something leaks."""
        RawConnection.close_all()
        state: dict[str, float] = {}
        for _ in range(200):
            names = ("open_streams", "open_requests", "buffered_body_bytes", "tasks")
            state = {name: await self.metric(name) for name in names}
            state["open_requests"] -= 1  # the scrape itself
            state["tasks"] = max(state["tasks"] - self.idle_tasks, 0)
            if not any(state.values()):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"left behind: {state}")

    async def idle_requests(self) -> None:
        """Wait until none runs any more, whatever connections are open."""
        for _ in range(500):
            if not await self.metric("open_streams") and await self.metric("open_requests") == 1:
                return  # the scrape itself
            await asyncio.sleep(0.02)
        raise AssertionError("requests still run")


@asynccontextmanager
async def gateway_started(
    *,
    limits: dict[str, Any] | None = None,
    database_url: str = "",
    redis_url: str = "",
    snapshot: dict[str, Any] | None = None,
    full_key: dict[str, Any] | None = None,
    with_smaller: bool = False,
    environment: dict[str, str] | None = None,
    peers: bool = True,
    graceful_s: int = 10,
    server_arguments: Sequence[str] = (),
) -> AsyncIterator[GatewayProcess]:
    """With a `database_url` keys and routes come from there, else from a given snapshot, to which `snapshot`
    and, of the key named full, `full_key` add. `with_smaller`: a model named SMALLER stands in for MODEL."""
    with tempfile.TemporaryDirectory(prefix="sluice-gw-", dir="/tmp") as name:
        folder = Path(name)
        digest = store_make(folder / "weights")
        dispatcher = Dispatcher(socket_address(folder, "d"))
        worker = WorkerPeer("worker-0", socket_address(folder, "w"), digest)
        pepper = os.environ["SLUICE_KEY_PEPPER"]
        names = ("full", "narrow", "scopeless", "expired", "continuing", "unknown")
        keys = {name: key_generate() for name in names}
        document: dict[str, Any] = {
            "keys": [
                {"key": keys["full"], **(full_key or {})},
                {"key": keys["narrow"], "models": ["other"]},
                {"key": keys["scopeless"], "scopes": []},
                {"key": keys["expired"], "expires_at": "2026-01-01T00:00:00+00:00"},
                {"key": keys["continuing"], "continues_streams": True},
            ],
            "routes": {MODEL: digest, "other": digest, "org/third": digest},
            "context_tokens": CONTEXT_TOKENS,
            **(snapshot or {}),
        }
        if with_smaller:
            document["routes"][SMALLER] = store_make(folder / "weights", template=TEMPLATE + " ")
            document["smaller"] = {MODEL: SMALLER}
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_STATE": name,
            "SLUICE_SPOOL": str(folder / "spool"),
            "SLUICE_WEIGHTS": str(folder / "weights"),
            "SLUICE_DISPATCH": dispatcher.address,
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_KEY_PEPPER": pepper,
            "SLUICE_MASTER_KEY": os.environ["SLUICE_MASTER_KEY"],
            "SLUICE_DB_GATEWAY": database_url or NO_POSTGRES,
            "REDIS_URL": redis_url or NO_VALKEY,
            "TEST_LIMITS": json.dumps({"quota_answer_s": 1.0, **(limits or {})}),  # busy machines are slow
            **({} if database_url else {"TEST_SNAPSHOT": json.dumps(document)}),
            **(environment or {}),
        }
        log = folder / "log"
        with socket.socket() as listener, log.open("wb") as log_file:
            listener.bind(("127.0.0.1", 0))
            listener.listen(4096)
            arguments = ["--factory", "tests.gateway.server:make", "--fd", str(listener.fileno())]
            arguments += ["--http", "tests.gateway.server:QuickProtocol", "--log-level", "info"]
            arguments += ["--timeout-graceful-shutdown", str(graceful_s), "--no-access-log"]
            arguments += server_arguments
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "uvicorn",
                *arguments,
                env=variables,
                pass_fds=[listener.fileno()],
                stdout=log_file,
                stderr=log_file,
            )
            gateway = GatewayProcess(
                listener.getsockname()[1], process, dispatcher, worker, digest, folder, log, keys
            )
        try:
            if peers:
                await dispatcher.start()
                ended = asyncio.create_task(process.wait())
                waited: list[asyncio.Future[Any]] = [ended, dispatcher.hello]
                await asyncio.wait(waited, return_when="FIRST_COMPLETED")
                assert not ended.done(), "the gateway did not start"
                ended.cancel()
                await dispatcher.add(worker)
                gateway.idle_tasks = await gateway.metric("tasks")
            yield gateway
        finally:
            RawConnection.close_all()
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), 15)
                except TimeoutError:
                    process.kill()
                    await process.wait()
            for peer in {dispatcher, worker, *dispatcher.workers}:
                await peer.stop()
            sys.stdout.write(log.read_text())
