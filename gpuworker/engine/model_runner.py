"""Runs step plans on a torch model: index tensors, forward pass, sampling. Knows nothing of the scheduler."""

import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.engine.attention import (
    AttentionPlan,
    KVCache,
    bucket_build,
    bucket_edges,
    chunk_build,
)
from gpuworker.engine.block_pool import BLOCK_SIZE, blocks_for
from gpuworker.engine.config import ModelConfig, config_load
from gpuworker.engine.layers import Linear
from gpuworker.engine.loader import Weights
from gpuworker.engine.model import LlamaModel
from gpuworker.engine.plan import PlanRow, RowStart, StepPlan
from gpuworker.engine.sampler import Sampler, SamplingColumns
from gpuworker.wire.messages import RowKey, Sampling

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class NonFiniteLogits(Exception):
    """A row's hidden states or logits hold NaN or infinity: the weights are broken."""


class ModelRunner:
    """Per-slot state (block tables, sampling parameters) lives in arrays that plans update in place."""

    def __init__(self, model: LlamaModel, *, blocks: int, max_rows: int, max_context_tokens: int) -> None:
        config = model.config
        self.max_context_tokens = max_context_tokens
        self._model = model
        self._cache = KVCache(config.layers, blocks, config.kv_heads, config.head_dim, model.dtype)
        self._tables = np.zeros((max_rows, blocks_for(max_context_tokens)), np.int64)
        self._columns = SamplingColumns(max_rows)
        self._sampler = Sampler(config.vocab_size)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        blocks: int,
        max_rows: int,
        max_context_tokens: int,
        dtype: str = "auto",
        threads: int | None = None,
    ) -> "ModelRunner":
        """Raises UnsupportedModel or BadWeights. `dtype`: auto, float32 or bfloat16. The runner's
        `max_context_tokens` is the smaller of what was asked and what the model was made for."""
        if threads is not None:
            torch.set_num_threads(threads)
        config = config_load(folder)
        resolved = fastest_dtype(config) if dtype == "auto" else DTYPES[dtype]
        context = min(max_context_tokens, config.max_position)
        with torch.inference_mode():
            weights = Weights(folder, config, resolved)
            model = LlamaModel(config, weights, max_positions=context)
            runner = cls(model, blocks=blocks, max_rows=max_rows, max_context_tokens=context)
        runner.warm_up()
        return runner

    def warm_up(self) -> None:
        """A chunk and a decode, so that no request pays for the first use of each kernel. What they leave in
        block 0 is overwritten before a row reads it."""
        key = RowKey("", 0)
        start = RowStart(key, 0, [0], Sampling(temperature=1.0, top_p=0.9))
        self.run(StepPlan([PlanRow(key, 0, 0, [0] * (BLOCK_SIZE - 1), 0, [0], True)], [start]))
        self.run(StepPlan([PlanRow(key, 0, BLOCK_SIZE - 1, [0], 1, [], True)], []))

    @property
    def vocab_size(self) -> int:
        return self._model.config.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        return self._model.dtype

    def run(self, plan: StepPlan) -> list[int]:
        rows, logits = self.compute_logits(plan)
        tokens = [-1] * len(plan.rows)
        if rows:
            slots = np.array([plan.rows[row].slot for row in rows], np.int64)
            ends = np.array([plan.rows[row].start + len(plan.rows[row].tokens) for row in rows], np.int64)
            with torch.inference_mode():
                sampled = self._sampler.sample(logits, self._columns, slots, ends)
            for row, token in zip(rows, sampled, strict=True):
                tokens[row] = token
        return tokens

    def compute_logits(self, plan: StepPlan) -> tuple[list[int], Tensor]:
        """Plan rows that sample, and their logits [rows, vocabulary]."""
        self._take_in(plan)
        # Decodes first, shortest first, so that a bucket is a slice of the step's tokens.
        order = sorted(range(len(plan.rows)), key=lambda row: _order(plan.rows[row]))
        rows = [plan.rows[index] for index in order]
        counts = np.array([len(row.tokens) for row in rows], np.int64)
        lasts = np.cumsum(counts) - 1
        sampling = [at for at, row in enumerate(rows) if row.sample]
        with torch.inference_mode():
            tokens = torch.tensor([token for row in rows for token in row.tokens])
            positions = np.concatenate([np.arange(row.start, row.start + len(row.tokens)) for row in rows])
            attention = self._plan_attention(rows, counts, positions)
            hidden = self._model.forward(tokens, torch.from_numpy(positions), self._cache, attention)
            if not bool(torch.isfinite(hidden.sum())):  # a fortieth of the time that looking at each takes
                # Whoever gets these blocks next would read it. Healthy rows write theirs anew when run again.
                self._cache.erase(attention.slots)
                raise NonFiniteLogits(f"among {len(tokens)} tokens of {len(rows)} rows")
            logits = self._model.logits(hidden.index_select(0, torch.from_numpy(lasts[sampling])))
            if not bool(torch.isfinite(logits.amax(-1)).all()):
                raise NonFiniteLogits(f"among {len(sampling)} rows")
        return [order[at] for at in sampling], logits

    def _take_in(self, plan: StepPlan) -> None:
        """Per-slot state from the plan. Idempotent."""
        for start in plan.starts:
            sampling = start.sampling
            self._columns.temperature[start.slot] = sampling.temperature
            self._columns.top_p[start.slot] = sampling.top_p
            self._columns.top_k[start.slot] = sampling.top_k
            self._columns.seed[start.slot] = sampling.seed & 0xFFFF_FFFF_FFFF_FFFF
        for row in plan.rows:
            if row.new_blocks:
                self._tables[row.slot, row.block_offset : row.block_offset + len(row.new_blocks)] = (
                    row.new_blocks
                )

    def _plan_attention(
        self, rows: list[PlanRow], counts: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> AttentionPlan:
        dtype = self._model.dtype
        slots = np.array([row.slot for row in rows], np.int64)
        owners = np.repeat(slots, counts)
        written = self._tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        decodes = int((counts == 1).sum())
        lengths = positions[:decodes] + 1
        widths = -(-lengths // BLOCK_SIZE)
        buckets = [
            bucket_build(
                first, self._tables[slots[first:last], : widths[last - 1]], lengths[first:last], dtype
            )
            for first, last in bucket_edges(widths)
        ]
        chunks, at = [], decodes
        for row in rows[decodes:]:
            count = len(row.tokens)
            table = self._tables[row.slot, : blocks_for(row.start + count)]
            chunks.append(chunk_build(at, table, row.start, count, dtype))
            at += count
        return AttentionPlan(torch.from_numpy(written), buckets, chunks)


def _order(row: PlanRow) -> tuple[bool, int]:
    return len(row.tokens) > 1, row.start


def fastest_dtype(config: ModelConfig) -> torch.dtype:
    """bfloat16 where the CPU computes it natively and a measured product is faster, else float32."""
    if not torch.cpu._is_avx512_bf16_supported():
        return torch.float32
    contenders = (torch.float32, torch.bfloat16)
    with torch.inference_mode():
        return min(contenders, key=lambda dtype: _product_ms(config, dtype))


def _product_ms(config: ModelConfig, dtype: torch.dtype, rounds: int = 30) -> float:
    """The fastest of many, because other processes only ever make one slower."""
    product = Linear(torch.randn(2 * config.intermediate_size, config.hidden_size).to(dtype))
    x = torch.randn(8, config.hidden_size).to(dtype)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        product(x)
        times.append(time.perf_counter() - begun)
    return min(times) * 1000


def kv_bytes_per_block(config: ModelConfig, dtype: torch.dtype) -> int:
    return config.kv_values_per_token * BLOCK_SIZE * dtype.itemsize
