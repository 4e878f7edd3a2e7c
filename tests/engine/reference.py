"""Random tiny models of transformers, and ours on the same weights, computed step by step on paged memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gpuworker.engine.attention import attention_plan
from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.kv_cache import KVCache
from gpuworker.engine.loader import Weights
from gpuworker.engine.model import LlamaModel
from gpuworker.engine.plan import PlanRow, SequenceKey
from gpuworker.families.config import config_load

VOCABULARY, CONTEXT = 300, 256
TINY: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
}


def reference_make(settings: Mapping[str, Any], folder: Path) -> PreTrainedModel:
    """A model of `TINY` with `settings` over it, weights of a size that makes every part matter, saved in
    shards."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**TINY, **settings})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.train(False)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float(name.endswith("norm.weight")), std=0.15)
    model.save_pretrained(folder, max_shard_size="300KB")
    return model


def reference_logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """[ids, vocabulary]."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits


class PagedModel:
    """Our model with `rows` of `CONTEXT` tokens at most, on blocks in no order."""

    def __init__(self, folder: Path, *, rows: int = 1, dtype: torch.dtype = torch.float32) -> None:
        config = config_load(folder)
        blocks = rows * CONTEXT // BLOCK_SIZE
        with torch.inference_mode():
            self.model = LlamaModel(config, Weights(folder, config, dtype), max_positions=CONTEXT)
            self._cache = KVCache(config.layers, blocks, config.kv_heads, config.head_dim, dtype)
        self._tables = np.random.default_rng(0).permutation(blocks).reshape(rows, -1)
        self._lengths = [0] * rows

    def step(self, work: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Appends tokens to rows, all in one forward pass. By row: logits of each token."""
        rows = [
            PlanRow(SequenceKey("", slot), slot, self._lengths[slot], list(tokens), 0, [], True)
            for slot, tokens in work.items()
        ]
        rows.sort(key=lambda row: (len(row.tokens) > 1, row.start))
        counts = np.array([len(row.tokens) for row in rows])
        positions = np.concatenate([np.arange(row.start, row.start + len(row.tokens)) for row in rows])
        model = self.model
        plan = attention_plan(rows, self._tables, counts, positions, model.windows, model.dtype)
        tokens = torch.tensor([token for row in rows for token in row.tokens])
        with torch.inference_mode():
            hidden = model.forward(tokens, torch.from_numpy(positions), self._cache, plan)
            logits = torch.split(model.logits(hidden), counts.tolist())
        for row in rows:
            self._lengths[row.slot] += len(row.tokens)
        return {row.slot: part for row, part in zip(rows, logits, strict=True)}
