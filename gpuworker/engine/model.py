"""The Llama family's forward pass over a flat list of tokens from many rows."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpuworker.engine.attention import AttentionPlan, KVCache, paged_attention
from gpuworker.engine.config import ModelConfig
from gpuworker.engine.layers import Linear, rms_norm, rope_tables, rotate
from gpuworker.engine.loader import Weights


class Layer:
    """Query, key and value projections are one product, so are gate and up."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.input_norm = weights.take(f"{prefix}.input_layernorm.weight")
        self.qkv = Linear(torch.cat([weights.take(f"{attention}.{name}_proj.weight") for name in "qkv"]))
        self.output = Linear(weights.take(f"{attention}.o_proj.weight"))
        self.post_norm = weights.take(f"{prefix}.post_attention_layernorm.weight")
        self.gate_up = Linear(
            torch.cat([weights.take(f"{mlp}.{name}_proj.weight") for name in ("gate", "up")])
        )
        self.down = Linear(weights.take(f"{mlp}.down_proj.weight"))


class LlamaModel:
    def __init__(self, config: ModelConfig, weights: Weights, *, max_positions: int) -> None:
        self.config = config
        self._embedding = weights.take("model.embed_tokens.weight")
        self._layers = [Layer(weights, f"model.layers.{index}") for index in range(config.layers)]
        self._norm = weights.take("model.norm.weight")
        head = self._embedding if config.tied_embeddings else weights.take("lm_head.weight")
        self._head = Linear(head)
        self._cos, self._sin = rope_tables(config, max_positions, self._embedding.dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def forward(self, tokens: Tensor, positions: Tensor, cache: KVCache, plan: AttentionPlan) -> Tensor:
        """`tokens` and `positions` [tokens] of all rows, row after row. Hidden states [tokens, hidden_size]
        before the final norm."""
        config, eps = self.config, self.config.rms_norm_eps
        cos = self._cos.index_select(0, positions)[:, None]
        sin = self._sin.index_select(0, positions)[:, None]
        x = F.embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            projected = layer.qkv(rms_norm(x, layer.input_norm, eps)).view(len(tokens), -1, config.head_dim)
            rotated = rotate(projected[:, : config.heads + config.kv_heads], cos, sin)
            attended = paged_attention(
                rotated[:, : config.heads],
                rotated[:, config.heads :],
                projected[:, config.heads + config.kv_heads :],
                cache.keys[index],
                cache.values[index],
                plan,
            )
            x = x + layer.output(attended.view(len(tokens), -1))
            gate, up = layer.gate_up(rms_norm(x, layer.post_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocabulary] in float32, for the rows that sample only: this is a quarter of a small step."""
        return self._head(rms_norm(hidden, self._norm, self.config.rms_norm_eps)).float()
