"""The state folder: one holder, clear refusals, secrets made once and readable by their owner only."""

import asyncio
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devservices.paths import FolderError, RunUser, own_folder, run_folder, socket_path, write_private
from devservices.state import (
    UpError,
    UpSettings,
    demo_write,
    port_check,
    secrets_load,
    space_check,
    state_lock,
    up_settings,
)
from tests.devservices.processes import line_of, script

HOLDER = """
import asyncio, os, sys, time
from devservices.state import state_lock, up_settings
asyncio.run(state_lock(up_settings({"SLUICE_STATE": sys.argv[1], "SLUICE_PORT": "8765"})))
print(os.getpid(), flush=True)
time.sleep(60)
"""


def _settings(state: Path, **variables: str) -> UpSettings:
    return up_settings({"SLUICE_STATE": str(state), **variables})


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; only root may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def test_a_second_start_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    holder = script(HOLDER, str(tmp_path))
    pid = line_of(holder)

    with pytest.raises(UpError) as refusal:
        await state_lock(_settings(tmp_path))

    assert f"{tmp_path} is held by process {pid} (http://127.0.0.1:8765)" in str(refusal.value)
    holder.kill()
    holder.communicate()


async def test_a_killed_holder_does_not_keep_the_folder(tmp_path: Path) -> None:
    holder = script(HOLDER, str(tmp_path))
    line_of(holder)
    holder.kill()
    holder.communicate()

    descriptor = await state_lock(_settings(tmp_path))

    assert json.loads((tmp_path / "up.lock").read_text()) == {"pid": os.getpid(), "port": 8000}
    os.close(descriptor)


async def test_while_a_guardian_ends_what_a_killed_holder_left_the_next_start_waits(tmp_path: Path) -> None:
    earlier = await state_lock(_settings(tmp_path))
    (tmp_path / "up.lock").write_text('{"pid": 4194304, "port": 8000}')  # no process can have this number

    waiting = asyncio.create_task(state_lock(_settings(tmp_path)))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    os.close(earlier)

    async with asyncio.timeout(5):
        os.close(await waiting)


async def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UpError, match="set SLUICE_STATE") as refusal:
        await state_lock(_settings(tmp_path / "file" / "state"))

    assert len(str(refusal.value).splitlines()) == 1


def test_a_taken_port_is_refused_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UpError, match=rf"port {port} .* choose another with SLUICE_PORT"):
            port_check(port)
    port_check(port)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLUICE_PORT", "0"), ("SLUICE_PORT", "65536"), ("SLUICE_PORT", "http"), ("SLUICE_WORKERS", "-1")],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(UpError, match=f"{name} must be a number"):
        _settings(tmp_path, **{name: value})


def test_too_little_disk_stops_the_first_start_only(small_disk: Path) -> None:
    with pytest.raises(UpError, match="no disk space: the first start needs 2 GiB"):
        space_check(_settings(small_disk))

    secrets_load(small_disk)

    space_check(_settings(small_disk))


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    made = secrets_load(tmp_path)

    assert secrets_load(tmp_path) == made
    assert _mode(tmp_path / "secrets.json") == 0o600
    assert len(bytes.fromhex(made["key_pepper"])) == len(bytes.fromhex(made["master_key"])) == 32
    assert len(set(made.values())) == len(made)


def test_a_secret_that_an_older_file_lacks_is_added(tmp_path: Path) -> None:
    made = secrets_load(tmp_path)
    older = {name: value for name, value in made.items() if name != "master_key"}
    (tmp_path / "secrets.json").write_text(json.dumps(older))

    added = secrets_load(tmp_path)

    assert older.items() < added.items() == secrets_load(tmp_path).items()
    assert len(bytes.fromhex(added["master_key"])) == 32
    assert _mode(tmp_path / "secrets.json") == 0o600


def test_demo_file_holds_what_an_sdk_needs_and_is_private(tmp_path: Path) -> None:
    tenants = [{"name": name, "api_key": f"key-{name}"} for name in ("a", "b", "c")]
    seeded = {"tenants": tenants, "admin": {"username": "admin", "password": "x"}}

    demo_write(_settings(tmp_path, SLUICE_PORT="8123"), seeded, "model", {"gateway": 1, "worker-0": 2})

    demo = json.loads((tmp_path / "demo.json").read_text())
    assert demo["base_url"] == "http://127.0.0.1:8123/v1"
    assert demo["api_key"] == "key-a"
    assert (demo["tenants"], demo["admin"]) == (tenants, seeded["admin"])
    assert demo["pids"] == {"gateway": 1, "worker-0": 2}
    assert _mode(tmp_path / "demo.json") == 0o600


def test_a_private_file_replaces_an_open_one_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)

    write_private(path, "new")

    assert (path.read_text(), _mode(path), list(tmp_path.iterdir())) == ("new", 0o600, [path])


def test_sockets_lie_on_a_short_private_path_however_long_the_state_folder_is(tmp_path: Path) -> None:
    state = tmp_path / ("long" * 40)

    folder = run_folder(state)

    assert len(str(socket_path(folder, "worker-63.sock"))) < 60
    assert _mode(folder) == 0o700
    assert run_folder(state) == folder
    folder.rmdir()


def test_a_socket_path_the_kernel_cannot_bind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="107 bytes"):
        socket_path(tmp_path / ("x" * 107), "s")


def test_a_run_folder_that_somebody_else_prepared_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "run").symlink_to(target)

    with pytest.raises(FolderError, match="in the way"):
        own_folder(tmp_path / "run", RunUser(os.geteuid(), os.getegid()))


def test_a_state_folder_that_cannot_be_written_is_named_though_its_lock_file_can() -> None:
    source = """
import asyncio, os, sys
from pathlib import Path
from devservices.state import UpError, state_lock, up_settings
if os.geteuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(state_lock(up_settings({"SLUICE_STATE": sys.argv[1]})))
except UpError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        state = Path(name) / "state"
        Path(name).chmod(0o711)
        state.mkdir()
        (state / "up.lock").touch()
        (state / "up.lock").chmod(0o666)
        state.chmod(0o555)

        said, _ = script(source, str(state)).communicate()

        advice = "make it yours, or choose another with SLUICE_STATE"
        assert said == f"cannot write in the state folder {state}: {advice}\n"
