"""The whole path with real processes: gateway, dispatcher, and a worker whose model repeats its prompt."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.conformance.deployment import Deployment, GatewayProcess
from tests.conformance.servers import UVICORN
from tests.gateway.harness import MODEL
from tests.gateway.peers import socket_address

STEP_MS = 2.0


@dataclass(frozen=True, slots=True)
class Stack:
    """A completion repeats its prompt until `max_tokens`; a chat answers `said(content)`, then stops."""

    deployment: Deployment
    gateway: GatewayProcess

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def base_url(self) -> str:
        return f"{self.gateway.url}/v1"

    @property
    def key(self) -> str:
        return self.deployment.keys["full"]

    @property
    def operator_url(self) -> str:
        return self.deployment.database.operator_url


def said(content: str) -> str:
    """The chat template's words around one user's message, up to its end-of-turn token."""
    return f"user\n{content.strip()}"


@contextmanager
def stack_start(deployment: Deployment) -> Iterator[Stack]:
    address = socket_address(deployment.folder, "dispatch")
    variables = {"SLUICE_DISPATCH": address}
    worker = [sys.executable, "-m", "gpuworker", "--id", "worker-0", "--dispatch", address]
    worker += ["--listen", socket_address(deployment.folder, "worker"), "--model", MODEL]
    worker += ["--weights", str(deployment.weights), "--spool", str(deployment.folder / "worker-spool")]
    worker += ["--backend", "scripted", "--step-ms", str(STEP_MS), "--target-itl-ms", "off"]
    with (
        deployment.process("dispatcher", [sys.executable, "-m", "dispatch"], variables),
        deployment.process("worker", worker, variables),
        deployment.gateway(UVICORN, address) as gateway,
    ):
        gateway.ready_wait()
        yield Stack(deployment, gateway)
