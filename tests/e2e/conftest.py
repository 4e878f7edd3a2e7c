"""The whole of Sluice as processes, started once a session by the command that users type."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devservices.guardian import Guardian
from devservices.paths import state_hash
from devservices.processes import free_port

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A started stack; `supervisor` is the process whose SIGINT stops everything."""

    state: Path
    supervisor: subprocess.Popen[str]
    guardian: Guardian

    @property
    def demo(self) -> dict[str, Any]:
        """Read anew every time: pids change when a process is started again."""
        demo: dict[str, Any] = json.loads((self.state / "demo.json").read_text())
        return demo

    @property
    def operator_url(self) -> str:
        return str(self._services()["database"]["operator"])

    @property
    def redis_url(self) -> str:
        return str(self._services()["redis"])

    def _services(self) -> dict[str, Any]:
        services: dict[str, Any] = json.loads((self.state / "services.json").read_text())
        return services


def stack_start(state: Path, **variables: str) -> RunningStack:
    """Returns when the line `ready …` has been printed; fails with everything printed so far."""
    cache = Path(os.environ.get("SLUICE_TEST_CACHE", "var/test-cache")).resolve()
    chosen = ("DATABASE_URL", "REDIS_URL")
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    environment |= {"SLUICE_STATE": str(state), "SLUICE_WEIGHTS": str(cache / "weights")}
    environment |= {"SLUICE_PORT": str(free_port()), **variables}
    supervisor = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "up"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    guardian = Guardian.start()  # should this process be killed
    guardian.watch(supervisor.pid, signal.SIGINT)
    guardian.remove([Path("/var/tmp") / f"sluice-{state_hash(state)}"])  # root's data lies there
    assert supervisor.stdout is not None
    printed = []
    for line in supervisor.stdout:
        printed.append(line)
        if line.startswith("ready "):
            return RunningStack(state, supervisor, guardian)
    pytest.fail("the stack did not start:\n" + "".join(printed))


def stack_stop(stack: RunningStack) -> None:
    stack.supervisor.send_signal(signal.SIGINT)
    printed, _ = stack.supervisor.communicate(timeout=60)
    assert stack.supervisor.returncode == 0, printed
    stack.guardian.sweep()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    running = stack_start(tmp_path_factory.mktemp("stack"))
    yield running
    stack_stop(running)
