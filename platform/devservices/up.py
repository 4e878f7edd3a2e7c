"""`make up`: everything on one machine, from nothing to a line that says `ready`, until told to stop."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import redis

from devservices.child import server_spec
from devservices.launch import LocalServer
from devservices.paths import FolderError, run_folder
from devservices.postgres import PostgresServer
from devservices.processes import ServerError
from devservices.roles import ROLES, RolesError, bootstrap
from devservices.selfcheck import SelfCheckFailed, self_check
from devservices.snippets import ready_text
from devservices.stack import Stack, stop_stages
from devservices.state import (
    UpError,
    UpSettings,
    database_name,
    demo_write,
    port_check,
    secrets_load,
    services_write,
    space_check,
    state_lock,
    up_settings,
)
from devservices.supervisor import AlreadyTold, StartFailed, Supervisor
from devservices.valkey import ValkeyServer

Result = TypeVar("Result")

DATABASE = "sluice"
_EXPECTED = (UpError, StartFailed, ServerError, FolderError, RolesError, SelfCheckFailed)


def up(*, once: bool = False) -> int:
    """The exit status. `once`: check that a request works, then stop."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # meant for another server: it must not change how we reach ours
    try:
        settings = up_settings(dict(os.environ))
        return asyncio.run(_run(settings, once))
    except AlreadyTold:
        return 1
    except _EXPECTED as error:
        sys.stderr.write(f"{error}\n")
    except OSError as error:  # a full disk, a folder of somebody else's
        sys.stderr.write(f"{_explained(error)}\n")
    return 1


def _explained(error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS} and error.filename:
        folder = Path(os.fsdecode(error.filename)).parent
        return (
            f"cannot write in {folder} ({error.strerror}): make it yours, or choose another with SLUICE_STATE"
        )
    return f"cannot go on: {error}"


async def _run(settings: UpSettings, once: bool) -> int:
    lock = await state_lock(settings)
    port_check(settings.port)
    space_check(settings)
    run = _Up(settings, lock, once)
    return await run.run()


class _Up:
    def __init__(self, settings: UpSettings, lock: int, once: bool) -> None:
        self.settings = settings
        self.once = once
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.servers: list[LocalServer] = []
        self.roles: dict[str, str] = {}
        self.seeded: dict[str, Any] = {}
        self.model = ""
        self.upstreams: list[str] = []
        self.began = time.monotonic()
        self.run_folder = run_folder(settings.state)
        self.supervisor = Supervisor(on_change=self._demo_update, report=say, keep_open=[lock])
        self.supervisor.remove_at_end(self.run_folder)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup asks to stay
                loop.add_signal_handler(number, self._asked_to_stop)
        try:
            if not await self._unless_stopped(self._start()):
                return 130
            self.supervisor.running()
            if self.once:
                return await self._check_once()
            await self.stop.wait()
            return 0
        finally:
            if not self.hurry.is_set():
                say("stopping (Ctrl-C again to hurry)")
            await self.supervisor.stop(stop_stages(self.upstreams), self.hurry)
            for server in self.servers:
                server.release()
            shutil.rmtree(self.run_folder, ignore_errors=True)
            say("stopped")

    def _asked_to_stop(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
        elif not self.hurry.is_set():
            say("hurrying: what does not stop at once is killed")
            self.hurry.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether `work` finished. Raises what it raised, or why a process that should run has ended."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        ends: list[asyncio.Future[Any]] = [task, stop, self.supervisor.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, *_EXPECTED):
            await task
        if self.supervisor.failed.done():
            raise self.supervisor.failed.result()
        return False

    async def _start(self) -> None:
        settings, supervisor = self.settings, self.supervisor
        secrets = secrets_load(settings.state)
        admin_url, database = await self._postgres()
        redis_url = await self._valkey()
        passwords = {role: secrets[f"database_{role}"] for role in ROLES}
        self.roles = await self._roles(admin_url, database, passwords)
        stack = Stack(settings, secrets, self.roles, redis_url)
        services_write(settings, self.roles, redis_url, stack.dispatch_address)
        await self._step("migrate", supervisor.run_once(stack.migrate()))
        imported = await self._step("model", supervisor.run_once(stack.model_import(), shown=True))
        self.model, digest = imported.split()[-2:]
        self.seeded = await self._seed(stack)
        for spec in stack.dispatchers():
            await self._step(spec.name, supervisor.start(spec))
        for number in range(settings.workers):
            await self._step(f"worker-{number}", supervisor.start(stack.worker(number, self.model, digest)))
        self.upstreams = (await supervisor.run_once(stack.upstreams())).split()
        for name in self.upstreams:
            spec = stack.upstream_worker(name)
            await self._step(spec.name, supervisor.start(spec))
        for spec in (stack.controller(), stack.celery(), stack.beat()):
            await self._step(spec.name, supervisor.start(spec))
        say("  waiting for the gateway and the first worker")
        await self._step("gateway", supervisor.start(stack.gateway()))
        self._demo_update()
        say(f"  everything runs after {time.monotonic() - self.began:.1f} s")
        say(ready_text(settings, self.seeded, self.model))

    async def _postgres(self) -> tuple[str, str]:
        """An administrator's URL and the name of our database."""
        if self.settings.database_url:
            return self.settings.database_url, database_name(self.settings.database_url) or DATABASE
        server = await asyncio.to_thread(PostgresServer.prepare, self.settings.state)
        self.servers.append(server)
        self.supervisor.remove_at_end(server.sockets)
        await self._step("postgres", self.supervisor.start(server_spec(server)))
        return server.url, DATABASE

    async def _valkey(self) -> str:
        if self.settings.redis_url:
            await asyncio.to_thread(_redis_check, self.settings.redis_url)
            return self.settings.redis_url
        server = await asyncio.to_thread(ValkeyServer.prepare, self.settings.state)
        self.servers.append(server)
        await self._step("valkey", self.supervisor.start(server_spec(server)))
        return server.url

    async def _roles(self, admin_url: str, database: str, passwords: dict[str, str]) -> dict[str, str]:
        try:
            return await asyncio.to_thread(bootstrap, admin_url, database, passwords)
        except (psycopg.Error, ValueError) as error:  # ValueError: a host name that cannot be one
            reason = " ".join(str(error).split())
            raise UpError(f"cannot use the database server as its administrator: {reason}") from error

    async def _seed(self, stack: Stack) -> dict[str, Any]:
        """Keys are shown once, so what the first run made is kept in a private file."""
        result = self.settings.state / "seed.json"
        await self._step("seed", self.supervisor.run_once(stack.seed(result)))
        return dict(json.loads(await asyncio.to_thread(result.read_text)))

    async def _check_once(self) -> int:
        """Stream a completion, leave another halfway, and find both in the ledger's usage rows."""
        key = self.seeded["tenants"][0]["api_key"]
        tls = self.settings.front_door.own_client_context()
        found = await asyncio.to_thread(
            self_check, self.settings.port, key, self.model, self.roles["operator"], tls
        )
        say(f"self-check passed: {found}")
        return 0

    async def _step(self, name: str, work: Awaitable[Result]) -> Result:
        began = time.monotonic()
        result = await work
        say(f"  {name:<12} {time.monotonic() - began:5.1f} s")
        return result

    def _demo_update(self) -> None:
        if self.seeded:
            demo_write(self.settings, self.seeded, self.model, self.supervisor.pids)


def _redis_check(url: str) -> None:
    try:
        with redis.Redis.from_url(url, socket_timeout=5.0) as client:
            client.ping()
    except (redis.RedisError, ValueError, TypeError) as error:  # TypeError: a query option it does not know
        raise UpError(f"cannot use the server that REDIS_URL names: {error}") from error


def say(line: str) -> None:
    """Whoever reads us may have stopped reading; that is no reason to stop serving."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
