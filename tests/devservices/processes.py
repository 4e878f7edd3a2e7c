"""Watching processes that are not our children, without polling."""

import os
import select
import subprocess
import sys
from pathlib import Path


def gone_within(pid: int, seconds: float) -> bool:
    """Whether the process ends in time; one that is already gone counts."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def script(source: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python program that imports what we import, with a pipe to read what it prints."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def owner_uid(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid
