"""Ends process groups when the process that started them is gone, however it went.

The owner keeps the write end of a pipe; the guardian, a child in its own session, reads the other end and
learns `watch` and `forget` lines. At end of file the owner is dead: every group gets its stop signal, and
SIGKILL soon after; then the folders of `remove` lines go. Why not PR_SET_PDEATHSIG: it misses grandchildren
and is cleared by setuid.
Standard library only; starts in 20 ms.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

GRACE_S = 3.0
KILLED_S = 1.0  # so that nothing is written any more where folders are removed
MARK_VARIABLE = "SLUICE_RUN_ID"


class Guardian:
    """The owner's side."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, mark: str = "", keep_open: Sequence[int] = ()) -> Self:
        """`mark`: also end every process whose environment holds `SLUICE_RUN_ID=<mark>`.

        `keep_open`: descriptors the guardian holds until everything has ended (a lock, for instance).
        """
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            pass_fds=keep_open,
        )
        assert process.stdout is not None
        with process.stdout as answer:
            answer.read()  # it closes its end once it ignores signals
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def watch(self, group: int, stop_signal: signal.Signals) -> None:
        self._tell(f"watch {group} {int(stop_signal)}\n")

    def forget(self, group: int) -> None:
        """Once the group has ended: its number may be reused."""
        self._tell(f"forget {group}\n")

    def remove(self, folders: Sequence[Path], *, lock: Path | None = None) -> None:
        """Delete `folders` once everything has ended, unless somebody else has locked `lock` by then."""
        removal = {"folders": [str(folder) for folder in folders], "lock": str(lock) if lock else None}
        self._tell(f"remove {json.dumps(removal)}\n")

    def close(self) -> None:
        """End the guardian without touching any group or folder."""
        self._tell("close\n")
        self.sweep()

    def sweep(self) -> None:
        """End what is still watched or marked, as if we had died, and wait for it."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed: nothing left to tell it
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:  # it was killed; the owner sees `is_alive` and starts another
            return


def guard(lines: Iterable[str], mark: str) -> None:
    """Follow the owner's lines to their end, then end what is left."""
    groups: dict[int, int] = {}
    removals: list[dict[str, Any]] = []
    for line in lines:
        verb, _, rest = line.strip().partition(" ")
        if verb == "watch":
            group, stop_signal = rest.split()
            groups[int(group)] = int(stop_signal)
        elif verb == "forget":
            groups.pop(int(rest), None)
        elif verb == "remove":
            removals.append(json.loads(rest))
        elif verb == "close":
            return
    _end(groups, mark)
    for removal in removals:
        _remove(removal["folders"], removal["lock"])


def _remove(folders: list[str], lock: str | None) -> None:
    """The lock is that of `processes.folder_lock`: a server started meanwhile keeps its folders."""
    try:
        if lock is not None:
            descriptor = os.open(lock, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # in use again, or gone already
        return
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _end(groups: dict[int, int], mark: str) -> None:
    for group, stop_signal in groups.items():
        _signal(os.killpg, group, stop_signal)
    for pid in _marked(mark):
        _signal(os.kill, pid, signal.SIGTERM)
    family = _family_wait(groups, mark, GRACE_S)
    for group in groups:
        _signal(os.killpg, group, signal.SIGKILL)
    for pid in family:
        _signal(os.kill, pid, signal.SIGKILL)
    if family:
        _family_wait(groups, mark, KILLED_S)


def _family_wait(groups: dict[int, int], mark: str, patience_s: float) -> set[int]:
    """Who is left after the time."""
    deadline = time.monotonic() + patience_s
    while (family := _family(groups, mark)) and time.monotonic() < deadline:
        time.sleep(0.05)  # not our children: there is no event to wait for
    return family


def _family(groups: dict[int, int], mark: str) -> set[int]:
    """Living members of the groups, all descendants (PostgreSQL's sessions leave the group), the marked."""
    parents: dict[int, int] = {}
    family: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if fields[0] in "ZX":
            continue
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        if int(fields[2]) in groups:
            family.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in family}
        grown = not children <= family
        family |= children
    return (family | _marked(mark)) - {os.getpid()}


def _marked(mark: str) -> set[int]:
    """Processes that carry the mark: also one started in the very moment the owner died."""
    if not mark:
        return set()
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def _signal(send: Callable[[int, int], None], number: int, sent: int) -> None:
    try:
        send(number, sent)
    except (ProcessLookupError, PermissionError):  # gone, or only zombies of another user are left
        return


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.close(1)
    guard(sys.stdin, sys.argv[1])
