"""The engine with a torch model of a weights folder."""

from pathlib import Path

from gpuworker.backends.base import BackendError
from gpuworker.backends.model_folder import eos_ids_load
from gpuworker.engine.config import UnsupportedModel
from gpuworker.engine.engine import Engine
from gpuworker.engine.loader import BadWeights
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.manifest import Manifest
from policy.pacing import StepPacer


def engine_build(
    folder: Path,
    manifest: Manifest,
    *,
    blocks: int,
    max_rows: int,
    pacer: StepPacer | None,
    dtype: str,
    threads: int,
) -> Engine:
    """Raises BackendError."""
    max_context_tokens = manifest.max_context_tokens
    try:
        runner = ModelRunner.load(
            folder,
            blocks=blocks,
            max_rows=max_rows,
            max_context_tokens=max_context_tokens,
            dtype=dtype,
            threads=threads,
        )
    except (UnsupportedModel, BadWeights) as error:
        raise BackendError(f"{folder}: {error}") from error
    return Engine(
        runner,
        folder / "tokenizer.json",
        blocks=blocks,
        max_rows=max_rows,
        max_context_tokens=max_context_tokens,
        pacer=pacer,
        eos_ids=eos_ids_load(folder, manifest),
    )
