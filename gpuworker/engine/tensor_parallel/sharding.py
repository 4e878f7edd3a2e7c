"""What one rank of a model holds: the config and the tensors of its slice."""

from dataclasses import replace

import torch
from torch import Tensor

from gpuworker.engine.loader import TensorSource
from gpuworker.families.config import ModelConfig
from gpuworker.families.fields import UnsupportedModel

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SPLIT_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")  # with their biases
SPLIT_COLUMNS = ("o_proj.weight", "down_proj.weight")  # their biases are added once, after the sum


def config_shard(config: ModelConfig, ranks: int) -> ModelConfig:
    """Sizes of one rank. Raises UnsupportedModel for a model that does not divide."""
    for name in ("kv_heads", "heads", "intermediate_size"):
        size = getattr(config, name)
        if size % ranks:
            raise UnsupportedModel(f"{name} {size} does not divide over {ranks} tensor-parallel ranks")
    return replace(
        config,
        heads=config.heads // ranks,
        kv_heads=config.kv_heads // ranks,
        intermediate_size=config.intermediate_size // ranks,
        tied_embeddings=False,
    )


class ShardedWeights:
    """A rank's slices of a whole model's tensors. The head is padded with zeros to `ranks` equal parts."""

    def __init__(self, source: TensorSource, config: ModelConfig, *, rank: int, ranks: int) -> None:
        """`config` is the whole model's."""
        self._source = source
        self._rank = rank
        self._ranks = ranks
        self._head = EMBEDDING if config.tied_embeddings else HEAD

    def take(self, name: str) -> Tensor:
        if name == HEAD:
            return self._part(self._source.take(self._head), 0)
        tensor = self._source.take(name)
        if name.split(".")[-2] in SPLIT_ROWS:
            return self._part(tensor, 0)
        if name.endswith(SPLIT_COLUMNS):
            return self._part(tensor, 1)
        return tensor

    def _part(self, tensor: Tensor, dimension: int) -> Tensor:
        size = -(-tensor.shape[dimension] // self._ranks)
        first = min(self._rank * size, tensor.shape[dimension])
        count = min(size, tensor.shape[dimension] - first)
        part = tensor.narrow(dimension, first, count)
        if count < size:  # a vocabulary that does not divide; all else was checked
            part = torch.cat((part, tensor.new_zeros(size - count, *tensor.shape[1:])))
        return part.clone(memory_format=torch.contiguous_format)
