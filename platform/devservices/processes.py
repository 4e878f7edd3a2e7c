"""Small facts about processes and ports that the launchers share."""

import fcntl
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path

_WELL_KNOWN_PORTS = frozenset({5432, 6379, 8000})


class ServerError(Exception):
    """A local server did not start; the message is one line and says what to do."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now, never a well-known one of a database."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _WELL_KNOWN_PORTS:
            return port


def folder_lock(folder: Path) -> int:
    """Lock `folder` for this process and return the descriptor; the kernel unlocks it when we die.

    The descriptor is not inherited, so a server that outlives us does not hold the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ServerError(f"{folder} is in use by another running server") from None
    if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
        os.close(descriptor)  # a guardian was just removing it
        raise ServerError(f"{folder} was removed by the end of an earlier server: start again")
    return descriptor


def processes_working_in(folder: Path, program: str) -> list[int]:
    """Processes of `program` whose working folder is `folder`: how a server left behind is recognised."""
    target = str(folder.resolve())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                executable = (entry / "exe").readlink().name.removesuffix(" (deleted)")
                if str((entry / "cwd").readlink()) == target and executable == program:
                    found.append(int(entry.name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def processes_end(pids: list[int], first: signal.Signals, grace_s: float) -> None:
    """Signal processes that are not our children and wait until they are gone; after `grace_s` SIGKILL."""
    handles: list[int] = []
    try:
        for pid in pids:
            try:
                handles.append(os.pidfd_open(pid))
            except ProcessLookupError:
                continue
        for sent, patience_s in ((first, grace_s), (signal.SIGKILL, 5.0)):
            for handle in handles:
                try:
                    signal.pidfd_send_signal(handle, sent)
                except ProcessLookupError:
                    continue
            handles = _still_running(handles, patience_s)
            if not handles:
                return
    finally:
        for handle in handles:
            os.close(handle)
    raise ServerError(f"processes {pids} left from an earlier run do not end, not even by SIGKILL")


def _still_running(handles: list[int], patience_s: float) -> list[int]:
    """Close the handles of processes that end within the time and return the others."""
    deadline = time.monotonic() + patience_s
    poller = select.poll()
    for handle in handles:
        poller.register(handle, select.POLLIN)
    remaining = set(handles)
    while remaining and (left_s := deadline - time.monotonic()) > 0:
        for handle, _ in poller.poll(left_s * 1000):
            poller.unregister(handle)
            os.close(handle)
            remaining.discard(handle)
    return list(remaining)


def process_stop(process: subprocess.Popen[bytes], first: signal.Signals, grace_s: float) -> None:
    """Stop a child that leads its own process group; what is left of the group is killed."""
    if process.poll() is None:
        process.send_signal(first)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    group_kill(process.pid)


def group_kill(group: int) -> None:
    """SIGKILL to a whole process group, which may be gone."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:  # only zombies of another user are left (as seen on Linux for a demoted group)
        return


def log_tail(path: Path, lines: int = 8) -> str:
    """The last lines of a log, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.rstrip().splitlines()[-lines:])
