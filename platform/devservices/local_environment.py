"""Lets `manage.py` find the stack that `make up` runs on this machine, so that a second terminal just works.

Nothing the caller has set is changed, and a caller with a database URL of its own is left alone entirely.
"""

import json
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

DATABASE_VARIABLES: Final = ("SLUICE_DB_APP", "SLUICE_DB_OPERATOR", "SLUICE_DB_OWNER", "SLUICE_DB_GATEWAY")
# `up` brings its own; the others work on the source alone and must not depend on what runs here.
WITHOUT_STACK: Final = frozenset({"up", "help", "version", "check", "makemigrations", "test"})
# Said before they begin: some import or fetch for minutes until they first ask the database.
NEED_DATABASE: Final = frozenset(
    {
        "controller",
        "data_keys_rewrap",
        "key",
        "migrate",
        "model_import",
        "reconcile",
        "seed",
    }
)
_PROBE_TIMEOUT_S: Final = 3.0


class NoLocalStack(Exception):
    """There is none to use; the message is one line and says what to do."""


@dataclass(frozen=True, slots=True)
class LocalEnvironment:
    """`variables` to add; `missing`: why there is no database to use, None when there may be one."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    missing: str | None = None


def local_environment(arguments: Sequence[str], environment: Mapping[str, str]) -> LocalEnvironment:
    """For a management command: `arguments` begin with its name. Raises NoLocalStack where it needs one."""
    command = arguments[0] if arguments else "help"
    asks_for_help = not {"-h", "--help", "--version"}.isdisjoint(arguments)
    if asks_for_help or command in WITHOUT_STACK or any(environment.get(name) for name in DATABASE_VARIABLES):
        return LocalEnvironment()
    try:
        variables = stack_variables(Path(environment.get("SLUICE_STATE") or "var").resolve())
    except NoLocalStack as missing:
        if command in NEED_DATABASE:
            raise
        return LocalEnvironment(missing=str(missing))
    return LocalEnvironment({name: value for name, value in variables.items() if not environment.get(name)})


def stack_variables(state: Path) -> dict[str, str]:
    """What the processes of the stack below `state` are told. Raises NoLocalStack when it does not run."""
    services_path, secrets_path = state / "services.json", state / "secrets.json"
    try:
        services, secrets = _private_read(services_path), _private_read(secrets_path)
        roles = services["database"]
        variables = {
            "SLUICE_STATE": str(state),
            "SLUICE_WEIGHTS": services["weights"],
            "SLUICE_DISPATCH": services["dispatch"],
            "SLUICE_WIRE_SECRET": secrets["wire_secret"],
            "SLUICE_SECRET_KEY": secrets["secret_key"],
            "SLUICE_KEY_PEPPER": secrets["key_pepper"],
            "SLUICE_MASTER_KEY": secrets["master_key"],
            "REDIS_URL": services["redis"],
            **{f"SLUICE_DB_{role.upper()}": url for role, url in roles.items()},
        }
    except (FileNotFoundError, NotADirectoryError):
        raise NoLocalStack(
            f"no running stack found under {state}: run `make up` (or set SLUICE_STATE, or SLUICE_DB_*)"
        ) from None
    except OSError as error:
        raise NoLocalStack(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoLocalStack(
            f"{services_path} or {secrets_path.name} cannot be understood: run `make up` again"
        ) from None
    _answer_require(state, roles["operator"])
    return variables


def _private_read(path: Path) -> dict[str, Any]:
    """Refuses a file that others may read or that somebody else has put there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        raise NoLocalStack(
            f"{path} belongs to another user: run this as the user of `make up` (or set SLUICE_DB_*)"
        ) from None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if os.geteuid() not in {0, status.st_uid}:
            raise NoLocalStack(f"{path} belongs to user {status.st_uid}: run this as that user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise NoLocalStack(f"{path} is open to other users: chmod 600 {path}")
        return dict(json.load(file))


def _answer_require(state: Path, url: str) -> None:
    """A look at the port, so that a stack that was stopped is told at once."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or 5432
    except ValueError:  # several hosts: the driver tries them
        return
    if not host:  # a socket folder
        return
    try:
        socket.create_connection((host, port), timeout=_PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise NoLocalStack(
            f"the stack under {state} does not run ({host}:{port}: {error.strerror or error}): "
            "run `make up` (or set SLUICE_STATE, or SLUICE_DB_*)"
        ) from None
