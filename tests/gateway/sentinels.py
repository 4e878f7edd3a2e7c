"""A primary, a replica and a Sentinel of Valkey, for failovers."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from devservices.processes import free_port
from devservices.valkey import ValkeyServer

SERVICE = "quotas"
PASSWORD = "of-a-test"


@dataclass
class Failover:
    primary_port: int
    replica_port: int
    sentinel_port: int
    primary: "subprocess.Popen[bytes]"

    @property
    def sentinel_url(self) -> str:
        return f"redis+sentinel://:{PASSWORD}@127.0.0.1:{self.sentinel_port}/{SERVICE}/0"

    @property
    def hosts_url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.replica_port},127.0.0.1:{self.primary_port}/0"

    def replica(self) -> redis.Redis:
        return redis.Redis(port=self.replica_port, password=PASSWORD)

    def primary_kill(self) -> None:
        self.primary.send_signal(signal.SIGKILL)
        self.primary.wait()


@contextmanager
def replicated(server: ValkeyServer, folder: Path, *, with_sentinel: bool = True) -> Iterator[Failover]:
    """`server` lends its program only."""
    binary, started = server.command[0], []

    def start(name: str, port: int, *lines: str, mode: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        home = folder / name
        home.mkdir(parents=True)
        common = ("bind 127.0.0.1", f"port {port}", f"dir {home}", 'logfile "log"')
        (home / "conf").write_text("\n".join((*common, *lines)) + "\n")
        process = subprocess.Popen([binary, str(home / "conf"), *mode], stdout=subprocess.DEVNULL)
        started.append(process)
        _await(lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close())
        return process

    secrets = (f"requirepass {PASSWORD}", f"masterauth {PASSWORD}", 'save ""', "repl-diskless-sync-delay 0")
    primary_port, replica_port, sentinel_port = free_port(), free_port(), free_port()
    try:
        primary = start("primary", primary_port, *secrets)
        start("replica", replica_port, *secrets, f"replicaof 127.0.0.1 {primary_port}")
        failover = Failover(primary_port, replica_port, sentinel_port, primary)
        _await(lambda: _demand(failover.replica().info("replication")["master_link_status"] == "up"))
        if with_sentinel:
            start(
                "sentinel",
                sentinel_port,
                f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} 1",
                f"sentinel auth-pass {SERVICE} {PASSWORD}",
                f"sentinel down-after-milliseconds {SERVICE} 500",
                f"sentinel failover-timeout {SERVICE} 3000",
                mode=("--sentinel",),
            )
            sentinel = redis.Redis(port=sentinel_port)
            _await(lambda: _demand(bool(sentinel.sentinel_slaves(SERVICE))))
        yield failover
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _demand(truth: bool) -> None:
    if not truth:
        raise ConnectionError


def _await(step) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            step()
        except (OSError, redis.RedisError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # servers tell nobody when they have agreed: there is no event to wait for
        else:
            return
