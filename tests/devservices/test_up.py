"""`manage.py up` when it cannot: one clear line, exit status 1, nothing left running."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devservices.paths import state_hash
from devservices.processes import free_port, processes_working_in
from devservices.valkey import ValkeyServer
from tests.devservices.folders import read_only
from tests.devservices.processes import line_of, script
from tests.devservices.test_state import HOLDER

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def data_removed(tmp_path: Path) -> Iterator[None]:
    """The data that a closed state folder sent to /var/tmp."""
    yield
    shutil.rmtree(Path("/var/tmp") / f"sluice-{state_hash(tmp_path)}", ignore_errors=True)


def _up(state: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = kept | {"SLUICE_STATE": str(state), "SLUICE_PORT": str(free_port()), **variables}
    command = [sys.executable, str(ROOT / "manage.py"), "up"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_taken_port_stops_it_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = _up(tmp_path, SLUICE_PORT=str(port))

    assert answer.returncode == 1
    expected = (
        f"port {port} of 127.0.0.1 cannot be used (Address already in use): choose another with SLUICE_PORT\n"
    )
    assert (answer.stdout, answer.stderr) == ("", expected)
    assert [path.name for path in tmp_path.iterdir()] == ["up.lock"]


def test_a_second_one_on_the_same_state_says_who_holds_it(tmp_path: Path) -> None:
    holder = script(HOLDER, str(tmp_path))
    pid = line_of(holder)

    answer = _up(tmp_path)

    assert answer.returncode == 1
    assert answer.stderr.startswith(f"{tmp_path} is held by process {pid} (http://127.0.0.1:8765)")
    assert len(answer.stderr.splitlines()) == 1
    holder.kill()
    holder.communicate()


@pytest.mark.parametrize(
    ("variable", "url", "said"),
    [
        ("REDIS_URL", "redis://127.0.0.1:{port}/0", "cannot use the server that REDIS_URL names"),
        ("DATABASE_URL", "postgresql://x:y@127.0.0.1:{port}/sluice", "cannot use the database server"),
    ],
)
def test_a_server_of_the_users_that_does_not_answer_is_one_line_and_ours_are_stopped(
    tmp_path: Path, variable: str, url: str, said: str
) -> None:
    answer = _up(tmp_path, **{variable: url.format(port=free_port())})

    assert answer.returncode == 1
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stdout.splitlines()[-1] == "stopped"
    assert not processes_working_in(tmp_path / "valkey", "valkey-server")
    ValkeyServer.prepare(tmp_path).release()  # its folder is free again


@pytest.mark.parametrize(
    ("variable", "url", "said"),
    [
        ("DATABASE_URL", "nonsense", "DATABASE_URL is not a URL such as postgresql://"),
        (
            "DATABASE_URL",
            "mysql://root:secret@127.0.0.1/x",
            "DATABASE_URL is not a URL such as postgresql://",
        ),
        ("DATABASE_URL", "postgresql://h:port/x", "DATABASE_URL is not a URL such as postgresql://"),
        ("DATABASE_URL", "postgresql://127.0.0.1:1/x?colour=red", "cannot use the database server"),
        ("REDIS_URL", "nonsense", "REDIS_URL is not a URL such as redis://"),
        ("REDIS_URL", "memcached://:secret@127.0.0.1", "REDIS_URL is not a URL such as redis://"),
        ("REDIS_URL", "redis://[::1", "REDIS_URL is not a URL such as redis://"),
        ("REDIS_URL", "redis://127.0.0.1:1/0?colour=red", "cannot use the server that REDIS_URL names"),
    ],
)
def test_a_url_that_makes_no_sense_is_one_line_without_its_password(
    tmp_path: Path, variable: str, url: str, said: str
) -> None:
    answer = _up(tmp_path, **{variable: url})

    assert (answer.returncode, len(answer.stderr.splitlines())) == (1, 1)
    assert answer.stderr.startswith(said)
    assert "secret" not in answer.stderr


def test_a_model_that_cannot_be_fetched_is_the_line_of_the_import_alone(tmp_path: Path) -> None:
    answer = _up(tmp_path, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0", PIP_NO_CACHE_DIR="1")

    assert answer.returncode == 1
    assert "did not start" not in answer.stderr
    assert answer.stderr.strip().splitlines()[-1].startswith("CommandError: ")


def test_a_read_only_state_folder_is_named(tmp_path: Path) -> None:
    with read_only(tmp_path / "disk") as folder:
        answer = _up(folder / "state")

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"cannot use the state folder {folder / 'state'} (")
    assert answer.stderr.endswith("set SLUICE_STATE\n")


def test_a_damaged_log_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a folder")

    answer = _up(tmp_path)

    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
