"""One child process of the supervisor: what to run, and an event that is set when it has ended."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals
from typing import IO

from devservices.launch import LocalServer
from devservices.paths import SpawnOptions

LOG_BYTES = 10 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """`is_ready` is asked with the pid, in a thread; `before_start` runs before each start, restarts too."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    log: Path
    stop_signal: Signals = SIGTERM
    stop_timeout_s: float = 10.0
    hurry_timeout_s: float = 0.0
    ready_timeout_s: float = 60.0
    spawn_options: SpawnOptions = field(default_factory=SpawnOptions)
    before_start: Callable[[], None] | None = None
    is_ready: Callable[[int], bool] | None = None


def server_spec(server: LocalServer) -> ProcessSpec:
    """PostgreSQL or Valkey, which get a moment to write their data even in a hurry."""
    return ProcessSpec(
        name=server.name,
        command=server.command,
        environment=server.environment,
        cwd=server.home,
        log=server.log,
        stop_signal=server.stop_signal,
        stop_timeout_s=server.stop_timeout_s,
        hurry_timeout_s=3.0,
        spawn_options=server.spawn_options,
        before_start=server.clear_leftovers,
        is_ready=server.is_ready,
    )


class Child:
    """Runs in a session of its own, so the terminal's Ctrl-C reaches only the supervisor."""

    def __init__(
        self, spec: ProcessSpec, mark: Mapping[str, str], stdout: int | None = None, stderr: int | None = None
    ) -> None:
        with log_open(spec.log) as log:
            self.process = subprocess.Popen(  # noqa: S603
                list(spec.command),
                cwd=spec.cwd,
                env={**spec.environment, **mark},
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log if stderr is None else stderr,
                start_new_session=True,
                **spec.spawn_options,
            )
        self.spec = spec
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.started_at = self._loop.time()
        self._handle = os.pidfd_open(self.process.pid)
        self._loop.add_reader(self._handle, self._on_end)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def outcome(self) -> str:
        """How it ended, for a message."""
        status = self.process.returncode
        if status is None:
            return "still running"
        return f"status {status}" if status >= 0 else Signals(-status).name

    def _on_end(self) -> None:
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self.process.wait()
        self.ended.set()


def log_open(path: Path) -> IO[bytes]:
    """For appending; a log that has grown large is set aside first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return path.open("ab")
