"""The engine with a torch model of a weights folder, in one process or split over several."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpuworker.backends.base import BackendError
from gpuworker.backends.model_folder import eos_ids_load, tokenizer_check
from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.engine.grammar import GrammarError
from gpuworker.engine.isolation import RunnerLost
from gpuworker.engine.kv_cache import KVTooLarge
from gpuworker.engine.loader import BadWeights
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.tensor_parallel.runner import TensorParallelRunner
from gpuworker.families.config import config_load
from gpuworker.families.fields import UnsupportedModel
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
    dtype: str,
    threads: int,
    ranks: int = 1,
) -> Engine:
    """Raises BackendError."""
    load: Callable[..., ModelRunner | TensorParallelRunner] = ModelRunner.load
    if ranks > 1:
        load = partial(TensorParallelRunner.load, ranks=ranks)
    eos_ids = eos_ids_load(folder, manifest)
    try:
        config = config_load(folder)
        if config.max_position < BLOCK_SIZE:
            raise UnsupportedModel(f"max_position_embeddings is {config.max_position}, below {BLOCK_SIZE}")
        max_context_tokens = min(config.max_position, blocks * BLOCK_SIZE)
        tokenizer_check(folder, config.vocab_size, eos_ids)
        runner = load(
            folder,
            blocks=blocks,
            max_rows=max_rows,
            max_context_tokens=max_context_tokens,
            host_blocks=cache.host_blocks,
            dtype=dtype,
            threads=threads,
        )
    except (UnsupportedModel, BadWeights, KVTooLarge, RunnerLost) as error:
        raise BackendError(f"{folder}: {error}") from error
    try:
        engine = Engine(
            runner,
            folder / "tokenizer.json",
            blocks=blocks,
            max_rows=max_rows,
            max_context_tokens=max_context_tokens,
            pacer=pacer,
            eos_ids=eos_ids,
            cache=dataclasses.replace(cache, digest=manifest.digest, kv_dtype=str(runner.dtype)),
        )
    except GrammarError as error:
        raise BackendError(f"{folder / 'tokenizer.json'}: {error}") from error
    if isinstance(runner, TensorParallelRunner):
        runner.on_lost(engine.fail)
    return engine
