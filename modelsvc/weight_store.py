"""The weight store: one folder a model version, named by its digest, that appears whole or not at all.

Only one import works on a store at a time (a file lock that ends with its process), so whatever temporary
folder an importer finds was left by one that was killed, and is removed. No Django here.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuworker.manifest import Manifest, WeightsMismatch, manifest_build, manifest_verify, manifest_write
from modelsvc.import_errors import NoDiskSpace

PART_PREFIX = ".part-"
DOWNLOADS = "downloads"
_SOURCES = "sources"


@contextmanager
def store_lock(store: Path) -> Iterator[None]:
    """Waits while another import works on the store; then removes what a killed one left."""
    store.mkdir(parents=True, exist_ok=True)
    with (store / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in (store, store / DOWNLOADS, store / _SOURCES):
            for leftover in folder.glob(f"{PART_PREFIX}*"):
                remove(leftover)
        yield


@contextmanager
def part_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder with a new name: a process that outlived its import cannot write into ours."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=PART_PREFIX, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def space_require(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise NoDiskSpace(
            f"{needed_bytes / 1e6:.0f} MB are needed below {folder}, {free_bytes / 1e6:.0f} MB are free: "
            "free some or set SLUICE_WEIGHTS to another folder, then run this again"
        )


def store_publish(part: Path, store: Path) -> Manifest:
    """Names the finished folder by its digest. The files are on disk before the name is."""
    manifest = manifest_build(part)
    target = store / manifest.digest
    if store_holds(store, manifest.digest):
        return manifest
    manifest_write(part, manifest)
    part.chmod(0o755)
    for path in part.iterdir():
        path.chmod(0o644)
        fsync(path)
    fsync(part)
    if target.exists():  # damaged: move it aside, a worker that runs on it keeps its open files
        with part_folder(store) as damaged:
            target.rename(damaged / "damaged")
            part.rename(target)
    else:
        part.rename(target)
    fsync(store)
    return manifest


def store_holds(store: Path, digest: str) -> bool:
    try:
        manifest_verify(store / digest)
    except WeightsMismatch:
        return False
    return True


def source_recall(store: Path, source: str) -> Manifest | None:
    """What a source (named by its checksum and the converter's version) became, if that is still whole."""
    try:
        digest = (store / _SOURCES / source).read_text()
        return manifest_verify(store / digest)
    except (OSError, WeightsMismatch):
        return None


def source_remember(store: Path, source: str, digest: str) -> None:
    with part_folder(store / _SOURCES) as part:
        (part / source).write_text(digest)
        fsync(part / source)
        (part / source).rename(store / _SOURCES / source)
    fsync(store / _SOURCES)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Of a file or of a folder (its entries)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
