"""`manage.py` beside a running stack: it finds it, and says in one line when there is none to find."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devservices.local_environment import NoLocalStack, local_environment
from devservices.state import secrets_load, services_write, up_settings
from tests.conftest import Database

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _stack(state: Path, database_url: str) -> dict[str, str]:
    """The files that `make up` leaves below `state`; its secrets."""
    secrets = secrets_load(state)
    roles = {role: database_url.format(role=role) for role in ("owner", "app", "operator", "gateway")}
    services_write(up_settings({"SLUICE_STATE": str(state)}), roles, "redis://r:1/0", "unix:/run/d.sock")
    return secrets


def _manage(state: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    environment = kept | {"SLUICE_STATE": str(state), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_running_stack_gives_everything_that_is_not_set(tmp_path: Path, listening: int) -> None:
    secrets = _stack(tmp_path, f"postgresql://{{role}}:x@127.0.0.1:{listening}/sluice")

    found = local_environment(["key", "list"], {"SLUICE_STATE": str(tmp_path), "REDIS_URL": "redis://mine/0"})

    assert found.missing is None
    assert found.variables == {
        "SLUICE_WEIGHTS": str(tmp_path / "weights"),
        "SLUICE_DISPATCH": "unix:/run/d.sock",
        "SLUICE_WIRE_SECRET": secrets["wire_secret"],
        "SLUICE_SECRET_KEY": secrets["secret_key"],
        "SLUICE_KEY_PEPPER": secrets["key_pepper"],
        "SLUICE_MASTER_KEY": secrets["master_key"],
        **{
            f"SLUICE_DB_{role.upper()}": f"postgresql://{role}:x@127.0.0.1:{listening}/sluice"
            for role in ("owner", "app", "operator", "gateway")
        },
    }


@pytest.mark.parametrize("variable", ["SLUICE_DB_APP", "SLUICE_DB_OPERATOR", "SLUICE_DB_OWNER"])
def test_two_databases_are_never_mixed(tmp_path: Path, listening: int, variable: str) -> None:
    _stack(tmp_path, f"postgresql://{{role}}:x@127.0.0.1:{listening}/sluice")

    found = local_environment(["key", "list"], {"SLUICE_STATE": str(tmp_path), variable: "postgresql://a/b"})

    assert (found.variables, found.missing) == ({}, None)


@pytest.mark.parametrize("arguments", [["up"], ["makemigrations", "--check"], ["key", "--help"], []])
def test_commands_that_need_no_stack_are_left_alone(
    tmp_path: Path, listening: int, arguments: list[str]
) -> None:
    _stack(tmp_path, f"postgresql://{{role}}:x@127.0.0.1:{listening}/sluice")

    assert local_environment(arguments, {"SLUICE_STATE": str(tmp_path)}).variables == {}


@pytest.mark.parametrize("name", ["services.json", "secrets.json"])
def test_files_that_others_may_read_are_refused(tmp_path: Path, listening: int, name: str) -> None:
    _stack(tmp_path, f"postgresql://{{role}}:x@127.0.0.1:{listening}/sluice")
    (tmp_path / name).chmod(0o644)

    with pytest.raises(NoLocalStack, match=rf"chmod 600 .*{name}$"):
        local_environment(["key", "list"], {"SLUICE_STATE": str(tmp_path)})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"database": 7}', '{"database": {"operator": 7}}'])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    _stack(tmp_path, "postgresql://{role}:x@127.0.0.1:1/sluice")
    (tmp_path / "services.json").write_text(text)

    with pytest.raises(NoLocalStack, match="cannot be understood"):
        local_environment(["key", "list"], {"SLUICE_STATE": str(tmp_path)})


@pytest.mark.parametrize(
    "arguments", [["key", "list", "--tenant", "acme"], ["createsuperuser", "--noinput", "--username", "x"]]
)
def test_nothing_configured_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    answer = _manage(tmp_path, *arguments)

    expected = (
        f"no running stack found under {tmp_path}: run `make up` (or set SLUICE_STATE, or SLUICE_DB_*)\n"
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (1, "", expected)


def test_a_stopped_stack_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else's meanwhile
        port = closed.getsockname()[1]
        _stack(tmp_path, f"postgresql://{{role}}:x@127.0.0.1:{port}/sluice")
        answer = _manage(tmp_path, "reconcile")

    assert (answer.returncode, answer.stdout, len(answer.stderr.splitlines())) == (1, "", 1)
    assert f"the stack under {tmp_path} does not run (127.0.0.1:{port}: Connection refused)" in answer.stderr


def test_a_url_that_is_not_set_is_named(tmp_path: Path) -> None:
    answer = _manage(tmp_path, "reconcile", SLUICE_DB_APP="postgresql://x@127.0.0.1:1/y")

    assert answer.returncode == 1
    assert answer.stderr == "SLUICE_DB_OPERATOR is not set; see docs/operations.md\n"


def test_a_command_works_beside_a_stack(tmp_path: Path, database: Database) -> None:
    _stack(tmp_path, "postgresql://unused")
    services = json.loads((tmp_path / "services.json").read_text())
    services["database"] = {
        role: getattr(database, f"{role}_url") for role in ("owner", "app", "operator", "gateway")
    }
    (tmp_path / "services.json").write_text(json.dumps(services))

    reconciled = _manage(tmp_path, "reconcile")
    migrated = _manage(tmp_path, "migrate", "--database", "owner")
    refused = _manage(tmp_path, "migrate")

    assert (reconciled.returncode, reconciled.stderr) == (0, "")
    assert reconciled.stdout.count("equal") == 6
    assert (migrated.returncode, migrated.stderr) == (0, "")
    assert "No migrations to apply" in migrated.stdout
    assert (refused.returncode, refused.stderr) == (
        1,
        "only the schema's owner may do this: add `--database owner`\n",
    )
