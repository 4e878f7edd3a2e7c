"""The state folder of one `make up`: who holds it, its secrets, and the file that tells others about it."""

import asyncio
import fcntl
import json
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from devservices.front_door import FrontDoor, FrontDoorError, front_door
from devservices.paths import write_private
from devservices.roles import ROLES

FIRST_START_BYTES: Final = 2 << 30
_GUARDIAN_PATIENCE_S: Final = 8.0


class UpError(Exception):
    """`make up` cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What the user may choose, all by environment variables."""

    state: Path
    weights: Path
    port: int
    workers: int
    database_url: str | None
    redis_url: str | None
    front_door: FrontDoor = field(default_factory=FrontDoor)
    dispatchers: int = 1  # one is active

    @property
    def base_url(self) -> str:
        return f"{self.front_door.scheme}://127.0.0.1:{self.port}"


def up_settings(environment: dict[str, str]) -> UpSettings:
    """Raises UpError for a value that makes no sense."""
    state = Path(environment.get("SLUICE_STATE") or "var").resolve()
    return UpSettings(
        state=state,
        weights=Path(environment.get("SLUICE_WEIGHTS") or state / "weights").resolve(),
        port=_number(environment, "SLUICE_PORT", default=8000, least=1, most=65535),
        workers=_number(environment, "SLUICE_WORKERS", default=1, least=1, most=64),
        database_url=_url(environment, "DATABASE_URL", ("postgresql", "postgres")),
        redis_url=_url(environment, "REDIS_URL", ("redis", "rediss")),
        front_door=_front_door(environment),
        dispatchers=_number(environment, "SLUICE_DISPATCHERS", default=1, least=1, most=4),
    )


def _front_door(environment: dict[str, str]) -> FrontDoor:
    try:
        return front_door(environment)
    except FrontDoorError as error:
        raise UpError(str(error)) from None


def _number(environment: dict[str, str], name: str, *, default: int, least: int, most: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise UpError(f"{name} must be a number from {least} to {most}, not {text!r}")
    return int(text)


def _url(environment: dict[str, str], name: str, schemes: tuple[str, ...]) -> str | None:
    """The value is not quoted in the refusal: it may hold a password."""
    text = environment.get(name)
    if not text:
        return None
    try:
        parts = urlsplit(text)
        sound = parts.scheme in schemes and (parts.port is None or parts.port > 0)
        sound = sound and bool(parts.hostname or "host=" in parts.query)
    except ValueError:  # a port or an address that cannot be one
        sound = False
    if not sound:
        example = {"DATABASE_URL": "admin:PASSWORD@HOST:5432/sluice", "REDIS_URL": ":PASSWORD@HOST:6379/0"}[
            name
        ]
        raise UpError(f"{name} is not a URL such as {schemes[0]}://{example}: correct it, or leave it out")
    return text


def database_name(url: str) -> str:
    """Of a PostgreSQL URL; empty when it names none."""
    return unquote(urlsplit(url).path.lstrip("/"))


async def state_lock(settings: UpSettings) -> int:
    """Take the folder or say who holds it. The descriptor stays open as long as anything of ours runs.

    When the holder was killed, its guardian holds on while it ends what is left: that takes seconds.
    """
    path = settings.state / "up.lock"
    try:
        settings.state.mkdir(mode=0o711, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UpError(
            f"cannot use the state folder {settings.state} ({error.strerror}): set SLUICE_STATE"
        ) from None
    if not os.access(settings.state, os.W_OK | os.X_OK, effective_ids=True):
        os.close(descriptor)
        raise UpError(
            f"cannot write in the state folder {settings.state}: "
            "make it yours, or choose another with SLUICE_STATE"
        )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _GUARDIAN_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = _holder(path)
            if loop.time() > deadline or (holder is not None and _alive(holder["pid"])):
                os.close(descriptor)
                raise UpError(_held(settings.state, holder)) from None
            await asyncio.sleep(0.1)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "port": settings.port}).encode(), 0)
    return descriptor


def _holder(path: Path) -> dict[str, int] | None:
    try:
        return dict(json.loads(path.read_text()))
    except ValueError:  # it is just being written
        return None


def _held(state: Path, holder: dict[str, int] | None) -> str:
    who = f"process {holder['pid']} (http://127.0.0.1:{holder['port']})" if holder else "another process"
    return f"{state} is held by {who}: stop it, or choose another folder with SLUICE_STATE"


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def port_check(port: int) -> None:
    """Before anything starts: whether the gateway will be able to listen."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UpError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): choose another with SLUICE_PORT"
            ) from None


def space_check(settings: UpSettings) -> None:
    status = os.statvfs(settings.state)
    free_bytes = status.f_bavail * status.f_frsize
    first = not (settings.state / "secrets.json").exists()
    if first and free_bytes < FIRST_START_BYTES:
        raise UpError(
            f"no disk space: the first start needs 2 GiB below {settings.state}, "
            f"{free_bytes / 2**30:.1f} are free; free some, or set SLUICE_STATE to another disk"
        )


def secrets_load(state: Path) -> dict[str, str]:
    """Made once; one that an older file lacks is added.

    Without the key pepper every issued API key is useless, without the master key every answer that is kept.
    """
    path = state / "secrets.json"
    kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    made = {
        "key_pepper": secrets.token_hex(32),
        "master_key": secrets.token_hex(32),
        "secret_key": secrets.token_urlsafe(64),
        "wire_secret": secrets.token_urlsafe(32),
        **{f"database_{role}": secrets.token_urlsafe(24) for role in ROLES},
    }
    held = made | kept
    if held != kept:
        write_private(path, json.dumps(held, indent=2) + "\n")
    return held


def demo_write(settings: UpSettings, seeded: dict[str, Any], model: str, pids: dict[str, int]) -> None:
    """`demo.json`: what a script needs to use this stack, replaced in one step whenever a pid changes."""
    demo = {
        "base_url": f"{settings.base_url}/v1",
        "api_key": seeded["tenants"][0]["api_key"],
        "model": model,
        "tenants": [{"name": tenant["name"], "api_key": tenant["api_key"]} for tenant in seeded["tenants"]],
        "admin": {name: seeded["admin"][name] for name in ("username", "password")},
        "pids": pids,
    }
    write_private(settings.state / "demo.json", json.dumps(demo, indent=2) + "\n")


def services_write(settings: UpSettings, roles: dict[str, str], redis_url: str, dispatch: str) -> None:
    """`services.json`: where everything listens, for psql and for `manage.py`; replaced at every start."""
    weights = str(settings.weights)
    services = {"database": roles, "redis": redis_url, "dispatch": dispatch, "weights": weights}
    write_private(settings.state / "services.json", json.dumps(services, indent=2) + "\n")
