"""The engine with a runner that echoes prompts: everything but the model, for tests. No torch here."""

import dataclasses
from pathlib import Path

from gpuworker.backends.model_folder import eos_ids_load
from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.manifest import Manifest
from policy.pacing import StepPacer


def engine_build(
    folder: Path,
    manifest: Manifest,
    *,
    blocks: int,
    max_rows: int,
    pacer: StepPacer | None,
    cache: CacheOptions,
    step_ms: float,
) -> Engine:
    runner = ScriptedRunner(step_ms=step_ms, vocab_size=int(manifest.config["vocab_size"]))
    return Engine(
        runner,
        folder / "tokenizer.json",
        blocks=blocks,
        max_rows=max_rows,
        max_context_tokens=manifest.max_context_tokens,
        pacer=pacer,
        eos_ids=eos_ids_load(folder, manifest),
        cache=dataclasses.replace(cache, digest=manifest.digest, kv_dtype="scripted"),
    )
