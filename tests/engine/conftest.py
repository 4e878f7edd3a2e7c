"""The demo model for engine tests, imported once into a cache folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modelsvc.importer import model_import_demo


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Weights folder of SmolLM2-135M-Instruct."""
    cache = Path(os.environ.get("SLUICE_TEST_CACHE", "var/test-cache")).resolve()
    weights = cache / "weights"
    return weights / model_import_demo(weights, progress=False).digest
