"""Start a local server for a caller that has no supervisor: spawn, tell the guardian, wait for it."""

import subprocess
import time
from pathlib import Path
from signal import Signals
from typing import Final, Protocol

from devservices.guardian import Guardian
from devservices.paths import SpawnOptions
from devservices.processes import ServerError, log_tail, process_stop

READY_TIMEOUT_S: Final = 60.0


class LocalServer(Protocol):
    """What PostgreSQL and Valkey have in common: how to run one, and how to know that it runs."""

    name: str
    home: Path
    log: Path
    port: int
    stop_signal: Signals
    stop_timeout_s: float

    @property
    def command(self) -> list[str]: ...
    @property
    def environment(self) -> dict[str, str]: ...
    @property
    def spawn_options(self) -> SpawnOptions: ...
    def is_ready(self, pid: int) -> bool: ...
    def renew_port(self) -> None: ...
    def clear_leftovers(self) -> None: ...
    def release(self) -> None: ...


def server_spawn(server: LocalServer, guardian: Guardian) -> subprocess.Popen[bytes]:
    """The running process, ready for use."""
    for _ in range(3):
        log_start = server.log.stat().st_size if server.log.exists() else 0
        with server.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                server.command,
                cwd=server.home,
                env=server.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **server.spawn_options,
            )
        try:
            guardian.watch(process.pid, server.stop_signal)
            if _becomes_ready(server, process):
                return process
        except BaseException:
            process_stop(process, server.stop_signal, server.stop_timeout_s)
            raise
        process_stop(process, server.stop_signal, server.stop_timeout_s)
        guardian.forget(process.pid)
        with server.log.open("rb") as log:
            log.seek(log_start)
            if b"Address already in use" not in log.read():
                break
        server.renew_port()  # somebody took the port between our look and the start
    raise ServerError(f"{server.name} did not start; {server.log} ends with:\n{log_tail(server.log)}")


def _becomes_ready(server: LocalServer, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if server.is_ready(process.pid):
            return True
        time.sleep(0.01)  # neither server tells when it is ready
    return False
