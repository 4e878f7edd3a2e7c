"""What the kernel says about processes."""

import os
from pathlib import Path


def _fields(pid: int) -> list[str]:
    """proc_pid_stat(5) from the third field on, the state; none when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_running(pid: int) -> bool:
    """Whether it can still do anything: a zombie cannot."""
    fields = _fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def children(pid: int | None = None) -> list[int]:
    """Of this process, unless said otherwise."""
    parent = str(os.getpid() if pid is None else pid)
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if _fields(pid)[1:2] == [parent] and is_running(pid)]


def address_space_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
