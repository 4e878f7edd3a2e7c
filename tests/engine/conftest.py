"""The demo model for engine tests, imported once into a cache folder."""

import os
from pathlib import Path

import pytest

import gpuworker.engine  # noqa: F401  before torch is loaded: it sets how torch's threads wait
from modelsvc.importer import model_import_demo


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Weights folder of SmolLM2-135M-Instruct."""
    cache = Path(os.environ.get("SLUICE_TEST_CACHE", "var/test-cache")).resolve()
    weights = cache / "weights"
    return weights / model_import_demo(weights, progress=False).digest
