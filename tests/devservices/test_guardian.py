"""The guardian ends what a killed owner left, and nothing else."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devservices.guardian import Guardian
from tests.devservices.processes import gone_within, line_of, script

# Starts a family under a guardian and prints its pids. All ignore SIGTERM; one grandchild has a session of
# its own; "late" is a child the guardian was never told of.
FAMILY = """
import os, signal, subprocess, sys, time
from devservices.guardian import MARK_VARIABLE, Guardian
guardian = Guardian.start("mark-of-this-test")
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # children inherit that
leader = '''
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
inside, outside = subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)
print(inside.pid, outside.pid, flush=True)
time.sleep(60)
'''
child = subprocess.Popen([sys.executable, "-c", leader], stdout=subprocess.PIPE, start_new_session=True)
guardian.watch(child.pid, signal.SIGTERM)
late = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True,
                        env={**os.environ, MARK_VARIABLE: "mark-of-this-test"})
print(child.pid, child.stdout.readline().decode().strip(), late.pid, guardian.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_owner_leaves_no_child_grandchild_or_unknown_child() -> None:
    owner = script(FAMILY)
    pids = [int(word) for word in line_of(owner).split()]
    assert len(pids) == 5

    owner.kill()
    owner.wait()

    assert all(gone_within(pid, 5.0) for pid in pids)
    owner.communicate()


def test_after_close_what_was_watched_lives_on() -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    guardian = Guardian.start()
    guardian.watch(child.pid, signal.SIGTERM)

    guardian.close()

    assert child.poll() is None
    child.kill()
    child.wait()


def test_a_forgotten_group_is_left_alone() -> None:
    kept, ended = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
    guardian = Guardian.start()
    for child in (kept, ended):
        guardian.watch(child.pid, signal.SIGTERM)
    guardian.forget(kept.pid)

    guardian.sweep()

    assert ended.wait() == -signal.SIGTERM
    assert kept.poll() is None
    kept.kill()
    kept.wait()


@pytest.mark.parametrize("locked", [False, True])
def test_a_killed_owner_leaves_no_folder_but_one_that_somebody_uses_again(
    tmp_path: Path, locked: bool
) -> None:
    source = """
import sys, time
from pathlib import Path
from devservices.guardian import Guardian
guardian = Guardian.start()
lock, other = Path(sys.argv[1]), Path(sys.argv[2])
guardian.remove([lock, other], lock=lock)
print(guardian.pid, flush=True)
time.sleep(60)
"""
    folders = [tmp_path / "data folder", tmp_path / "sockets"]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("")
    owner = script(source, *map(str, folders))
    guardian = int(line_of(owner))
    held = os.open(folders[0], os.O_RDONLY)
    if locked:
        fcntl.flock(held, fcntl.LOCK_EX)

    owner.kill()
    owner.communicate()

    assert gone_within(guardian, 5.0)
    assert [folder.exists() for folder in folders] == [locked, locked]
    os.close(held)


def test_after_close_no_folder_is_removed(tmp_path: Path) -> None:
    guardian = Guardian.start()
    guardian.remove([tmp_path])

    guardian.close()

    assert tmp_path.exists()


def test_signals_of_the_terminal_do_not_end_it() -> None:
    guardian = Guardian.start()
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    guardian.watch(child.pid, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian.pid, number)
    guardian.sweep()

    assert child.wait() == -signal.SIGTERM


def test_it_needs_nothing_but_the_standard_library() -> None:
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import runpy, sys; runpy.run_path(sys.argv[1])", _source()],
        capture_output=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr


def _source() -> str:
    import devservices.guardian

    return str(devservices.guardian.__file__)
