"""Runs step plans on a torch model: index tensors, forward pass, sampling. Knows nothing of the scheduler."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.engine.attention import AttentionPlan, attention_plan
from gpuworker.engine.block_pool import BLOCK_SIZE, blocks_for
from gpuworker.engine.kv_cache import KVCache
from gpuworker.engine.layers import Linear
from gpuworker.engine.loader import Weights
from gpuworker.engine.logprobs import token_logprobs
from gpuworker.engine.model import LlamaModel
from gpuworker.engine.plan import Moves, PlanRow, RowStart, Sampled, SequenceKey, StepPlan
from gpuworker.engine.sampler import Sampler
from gpuworker.engine.sampling_state import SamplingState
from gpuworker.families.config import ModelConfig, config_load
from gpuworker.wire.messages import Sampling, TokenLogprobs

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT_LOGITS_SLICE = 64  # positions whose logits exist at once, for prompt logprobs


class NonFiniteLogits(Exception):
    """A row's hidden states or logits hold NaN or infinity: the weights are broken."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A step's hidden states, row after row in the order of computation."""

    order: list[int]  # index in the plan of each row
    ends: NDArray[np.int64]  # [rows] where each row's tokens end
    hidden: Tensor  # [tokens, hidden_size]


class ModelRunner:
    """Implements `plan.Runner`. Per-slot state (block tables, sampling parameters) lives in arrays that plans
    update in place."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        blocks: int,
        max_rows: int,
        max_context_tokens: int,
        host_blocks: int = 0,
    ) -> None:
        config = model.config
        self.max_context_tokens = max_context_tokens
        self._model = model
        self._cache = KVCache(
            config.layers, blocks, config.kv_heads, config.head_dim, model.dtype, host_blocks=host_blocks
        )
        self._tables = np.zeros((max_rows, blocks_for(max_context_tokens)), np.int64)
        self._state = SamplingState(max_rows, max_context_tokens, config.vocab_size)
        self._sampler = Sampler(config.vocab_size)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        blocks: int,
        max_rows: int,
        max_context_tokens: int,
        host_blocks: int = 0,
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
            runner = cls(
                model,
                blocks=blocks,
                max_rows=max_rows,
                max_context_tokens=context,
                host_blocks=host_blocks,
            )
        runner.warm_up()
        return runner

    def warm_up(self) -> None:
        """A chunk and a decode, so that no request pays for the first use of each kernel. What they leave in
        block 0 is overwritten before a row reads it."""
        key = SequenceKey("", 0)
        start = RowStart(key, 0, [0] * (BLOCK_SIZE - 1), BLOCK_SIZE - 1, Sampling(top_p=0.9), [])
        self.run(StepPlan([PlanRow(key, 0, 0, [0] * (BLOCK_SIZE - 1), 0, [0], True)], [start]))
        self.run(StepPlan([PlanRow(key, 0, BLOCK_SIZE - 1, [0], 1, [], True)], []))

    @property
    def vocab_size(self) -> int:
        return self._model.config.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        return self._model.dtype

    def move(self, moves: Moves) -> None:
        with torch.inference_mode():
            self._cache.to_host(moves.to_host)
            self._cache.to_device(moves.to_device)
            self._cache.copy(moves.copies)

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        with torch.inference_mode():
            return self._cache.read(blocks)

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        """Raises ValueError for contents of another shape."""
        with torch.inference_mode():
            self._cache.write(blocks, contents)

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Raises NonFiniteLogits or NothingToSample."""
        with torch.inference_mode():
            computed = self._compute(plan)
            rows, logits = self._last_logits(plan, computed)
            slots = np.array([plan.rows[row].slot for row in rows], np.int64)
            lengths = np.array([plan.rows[row].start + len(plan.rows[row].tokens) for row in rows], np.int64)
            results = [Sampled()] * len(plan.rows)
            if rows:
                sampled = self._sampler.sample(logits, self._state, slots, lengths, plan.masks)
                for row, result in zip(rows, sampled, strict=True):
                    results[row] = result
            for at, row in enumerate(computed.order):
                if prompt := self._prompt_logprobs(plan.rows[row], int(computed.ends[at]), computed.hidden):
                    results[row] = Sampled(results[row].token, results[row].logprobs, prompt)
        return results

    def compute(self, plan: StepPlan) -> None:
        """KV of a plan and nothing else: what a tensor-parallel rank that does not sample contributes."""
        with torch.inference_mode():
            self._compute(plan)

    def compute_logits(self, plan: StepPlan) -> tuple[list[int], Tensor]:
        """Plan rows that sample, and their logits [rows, vocabulary]."""
        with torch.inference_mode():
            return self._last_logits(plan, self._compute(plan))

    def _compute(self, plan: StepPlan) -> Computed:
        self._take_in(plan)
        # Decodes first, shortest first, so that a bucket is a slice of the step's tokens.
        order = sorted(range(len(plan.rows)), key=lambda row: _order(plan.rows[row]))
        rows = [plan.rows[index] for index in order]
        counts = np.array([len(row.tokens) for row in rows], np.int64)
        tokens = torch.tensor([token for row in rows for token in row.tokens])
        positions = np.concatenate([np.arange(row.start, row.start + len(row.tokens)) for row in rows])
        attention = self._plan_attention(rows, counts, positions)
        hidden = self._model.forward(tokens, torch.from_numpy(positions), self._cache, attention)
        if not bool(torch.isfinite(hidden.sum())):  # a fortieth of the time that looking at each takes
            # Whoever gets these blocks next would read it. Healthy rows write theirs anew when run again.
            self._cache.erase(attention.slots)
            raise NonFiniteLogits(f"among {len(tokens)} tokens of {len(rows)} rows")
        return Computed(order, np.cumsum(counts), hidden)

    def _last_logits(self, plan: StepPlan, computed: Computed) -> tuple[list[int], Tensor]:
        sampling = [at for at, row in enumerate(computed.order) if plan.rows[row].sample]
        lasts = torch.from_numpy(computed.ends[sampling] - 1)
        return [computed.order[at] for at in sampling], self._logits(computed.hidden.index_select(0, lasts))

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self._model.logits(hidden)
        if not bool(torch.isfinite(logits.amax(-1)).all()):
            raise NonFiniteLogits(f"among {len(logits)} positions")
        return logits

    def _prompt_logprobs(self, row: PlanRow, end: int, hidden: Tensor) -> list[TokenLogprobs]:
        """Of the prompt tokens after each that the row computed; its hidden states end at `end`."""
        top = self._state.prompt_logprobs[row.slot]
        if top < 0:
            return []
        first = row.start + 1
        following = self._state.ids(
            row.slot, first, min(first + len(row.tokens), self._state.prompt_len[row.slot])
        )
        begin = end - len(row.tokens)
        told: list[TokenLogprobs] = []
        for at in range(0, len(following), PROMPT_LOGITS_SLICE):
            tokens = torch.from_numpy(following[at : at + PROMPT_LOGITS_SLICE].astype(np.int64))
            logits = self._logits(hidden[begin + at : begin + at + len(tokens)])
            told += token_logprobs(torch.log_softmax(logits, -1), tokens, np.full(len(tokens), top))
        return told

    def _take_in(self, plan: StepPlan) -> None:
        """Per-slot state from the plan. Idempotent."""
        for start in plan.starts:
            self._state.start(start)
        for row in plan.rows:
            self._state.extend(row)
            if row.new_blocks:
                self._tables[row.slot, row.block_offset : row.block_offset + len(row.new_blocks)] = (
                    row.new_blocks
                )

    def _plan_attention(
        self, rows: list[PlanRow], counts: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> AttentionPlan:
        return attention_plan(rows, self._tables, counts, positions, self._model.windows, self._model.dtype)


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
