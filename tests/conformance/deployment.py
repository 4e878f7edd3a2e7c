"""What a gateway stands on: a database with a tenant, keys and models, a Valkey, weights; its processes."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from billing.contracts import UsageRecord
from devservices.processes import free_port
from gpuworker.manifest import manifest_load
from gpuworker.wire.records import records_read
from modelsvc.services import route_switch, version_publish
from tenants.keys import key_generate
from tenants.scoping import operator_scope
from tests.conformance.servers import Server
from tests.conftest import Database
from tests.factories import ACTOR, key_create, price_create, tenant_create
from tests.gateway.harness import MODEL
from tests.gateway.peers import SECRET
from tests.gateway.weights import TEMPLATE, store_make

START_S = 30.0
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """`keys`: `full`; `narrow`, which may use only the model `other`; `unknown`, which is none."""

    folder: Path
    database: Database
    redis_url: str
    digest: str
    keys: Mapping[str, str]

    @property
    def weights(self) -> Path:
        return self.folder / "weights" / self.digest

    def environment(self) -> dict[str, str]:
        """What every process is told."""
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "SLUICE_STATE": str(self.folder),
            "SLUICE_WEIGHTS": str(self.folder / "weights"),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_SECRET_KEY": secrets.token_urlsafe(64),
            "SLUICE_KEY_PEPPER": os.environ["SLUICE_KEY_PEPPER"],
            "SLUICE_MASTER_KEY": os.environ["SLUICE_MASTER_KEY"],
            "SLUICE_DEFAULT_MODEL": MODEL,
            "SLUICE_DEFAULT_MODEL_ALIASES": "tgi,dummy",
            "REDIS_URL": self.redis_url,
            **self.database.environment(),
        }

    @contextmanager
    def gateway(self, server: Server, dispatch_address: str) -> Iterator["GatewayProcess"]:
        """Under `server`, connected to nothing yet."""
        name, port = f"gateway-{server.name}-{secrets.token_hex(3)}", free_port()
        variables = {
            "SLUICE_DISPATCH": dispatch_address,
            "SLUICE_GATEWAY_ID": name,
            "SLUICE_SPOOL": str(self.folder / name),
        }
        with self.process(name, server.command(port), variables) as process:
            yield GatewayProcess(f"http://127.0.0.1:{port}", port, process, self.folder / name)

    @contextmanager
    def process(
        self, name: str, command: list[str], variables: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Stopped with SIGTERM; what it wrote is shown with the test that fails."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env={**self.environment(), **variables}, stdout=file, stderr=file, cwd=self.folder
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            sys.stdout.write(f"-- {name}\n{log.read_text(errors='replace')}")


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    url: str
    port: int
    process: subprocess.Popen[bytes]
    spool: Path

    def spooled(self) -> list[UsageRecord]:
        """Records on disk, acknowledged by PostgreSQL or not."""
        records = []
        for segment in sorted((self.spool / "usage").glob("*.log")):
            with segment.open("rb") as file:
                for record in records_read(file, 0, segment.stat().st_size):
                    with contextlib.suppress(msgspec.DecodeError):  # a mark of the spool's own
                        records.append(msgspec.json.decode(record.payload, type=UsageRecord))
        return records

    def listening_wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the gateway ended"
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return
            time.sleep(0.02)
        raise AssertionError("the gateway does not listen")

    def ready_wait(self) -> None:
        """Also starts a gateway whose server has no lifespan: its first request does."""
        self.listening_wait()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if httpx.get(f"{self.url}/readyz", timeout=START_S).status_code == 200:
                return
            time.sleep(0.02)
        raise AssertionError("the gateway is not ready")


def deployment_make(folder: Path, database: Database, redis_url: str) -> Deployment:
    """Sync code with database access, while Django's aliases point at `database`."""
    store = folder / "weights"
    digest = store_make(store)
    tenant = tenant_create("acme")
    # Weights belong to one model: the other one's template differs by a blank.
    for slug, weights in ((MODEL, digest), ("other", store_make(store, template=TEMPLATE + " "))):
        manifest = manifest_load(store / weights)
        with operator_scope():
            version_publish(slug=slug, name=slug, owned_by="sluice", manifest=manifest, actor=ACTOR)
            route_switch(slug=slug, digest=manifest.digest, actor=ACTOR)
        price_create(slug)
    keys = {
        "full": key_create(tenant),
        "narrow": key_create(tenant, allowed_models=["other"]),
        "unknown": key_generate(),
    }
    return Deployment(folder, database, redis_url, digest, keys)
