"""A folder that nobody can write in, root neither."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def read_only(folder: Path, content: Path | None = None) -> Iterator[Path]:
    """`folder`, made with a copy of `content`; for root a file system of its own: no mode binds it."""
    folder.mkdir()
    as_root = os.geteuid() == 0
    if as_root and not _ran("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)):
        pytest.skip("cannot mount a file system here")
    try:
        if content is not None:
            shutil.copytree(content, folder, dirs_exist_ok=True)
        if as_root:
            assert _ran("mount", "-o", "remount,ro", str(folder))
        else:
            folder.chmod(0o555)
        yield folder
    finally:
        if as_root:
            assert _ran("umount", str(folder))
        else:
            folder.chmod(0o755)


def _ran(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
