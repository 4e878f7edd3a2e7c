"""The forward pass over a flat list of tokens from many rows: Llama, Mistral, Qwen2 and Qwen3.

These families differ in biases, norms of query and key heads, and attention windows; the config says which.

**Tensor parallelism** (Megatron's split) needs nothing in here but two functions and smaller sizes. A rank
passes its local config (`heads`, `kv_heads` and `intermediate_size` divided, `tied_embeddings` false when it
splits the vocabulary of the head) and a `TensorSource` whose `take` returns the rank's slice: rows of the
query, key, value, gate, up and head products and of their biases, columns of the attention output and down
products. The biases of these two, all norms and the embedding are taken whole. `all_reduce` then sums what
the two products give, before their bias is added once; `gather_logits` joins the vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gpuworker.engine.attention import AttentionPlan, paged_attention
from gpuworker.engine.kv_cache import KVCache
from gpuworker.engine.layers import Linear, SummedLinear, rms_norm
from gpuworker.engine.loader import TensorSource
from gpuworker.engine.rope import rope_tables, rotate
from gpuworker.families.config import ModelConfig

Communicate = Callable[[Tensor], Tensor]


def identity(x: Tensor) -> Tensor:
    return x


class Layer:
    """Query, key and value projections are one product, so are gate and up."""

    def __init__(
        self, config: ModelConfig, weights: TensorSource, prefix: str, all_reduce: Communicate
    ) -> None:
        def joined(names: list[str], *, bias: bool) -> Linear:
            weight = torch.cat([weights.take(f"{prefix}.{name}.weight") for name in names])
            return Linear(
                weight, torch.cat([weights.take(f"{prefix}.{name}.bias") for name in names]) if bias else None
            )

        def summed(name: str, *, bias: bool) -> SummedLinear:
            weight = weights.take(f"{prefix}.{name}.weight")
            return SummedLinear(weight, weights.take(f"{prefix}.{name}.bias") if bias else None, all_reduce)

        self.input_norm = weights.take(f"{prefix}.input_layernorm.weight")
        self.qkv = joined([f"self_attn.{name}_proj" for name in "qkv"], bias=config.qkv_bias)
        self.qk_norm = _qk_norm(config, weights, prefix) if config.qk_norm else None
        self.output = summed("self_attn.o_proj", bias=config.output_bias)
        self.post_norm = weights.take(f"{prefix}.post_attention_layernorm.weight")
        self.gate_up = joined(["mlp.gate_proj", "mlp.up_proj"], bias=config.mlp_bias)
        self.down = summed("mlp.down_proj", bias=config.mlp_bias)


class LlamaModel:
    def __init__(
        self,
        config: ModelConfig,
        weights: TensorSource,
        *,
        max_positions: int,
        all_reduce: Communicate = identity,
        gather_logits: Communicate = identity,
    ) -> None:
        """`all_reduce` [tokens, hidden_size] → the same shape, summed over ranks; `gather_logits`
        [rows, local vocabulary] → [rows, vocabulary]. Both may work in place."""
        self.config = config
        self.windows = frozenset(config.windows)
        self._embedding = weights.take("model.embed_tokens.weight")
        self._layers = [
            Layer(config, weights, f"model.layers.{index}", all_reduce) for index in range(config.layers)
        ]
        self._norm = weights.take("model.norm.weight")
        head = self._embedding if config.tied_embeddings else weights.take("lm_head.weight")
        self._head = Linear(head)
        self._gather_logits = gather_logits
        self._cos, self._sin = rope_tables(config, max_positions, self._embedding.dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def forward(self, tokens: Tensor, positions: Tensor, cache: KVCache, plan: AttentionPlan) -> Tensor:
        """`tokens` and `positions` [tokens] of all rows, row after row. Hidden states [tokens, hidden_size]
        before the final norm."""
        config, eps = self.config, self.config.rms_norm_eps
        turning = config.heads + config.kv_heads
        cos = self._cos.index_select(0, positions)[:, None]
        sin = self._sin.index_select(0, positions)[:, None]
        x = F.embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            projected = layer.qkv(rms_norm(x, layer.input_norm, eps)).view(len(tokens), -1, config.head_dim)
            queries_keys = projected[:, :turning]
            if layer.qk_norm is not None:
                queries_keys = rms_norm(queries_keys, None, eps) * layer.qk_norm
            rotated = rotate(queries_keys, cos, sin)
            attended = paged_attention(
                rotated[:, : config.heads],
                rotated[:, config.heads :],
                projected[:, turning:],
                cache.keys[index],
                cache.values[index],
                plan,
                config.windows[index],
            )
            x = x + layer.output(attended.view(len(tokens), -1))
            gate, up = layer.gate_up(rms_norm(x, layer.post_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocabulary] in float32, for the rows that sample only: this is a quarter of a small step."""
        local = self._head(rms_norm(hidden, self._norm, self.config.rms_norm_eps))
        return self._gather_logits(local).float()


def _qk_norm(config: ModelConfig, weights: TensorSource, prefix: str) -> Tensor:
    """One weight for each query and key head, so that all heads are normed in one call."""
    queries = weights.take(f"{prefix}.self_attn.q_norm.weight").expand(config.heads, -1)
    keys = weights.take(f"{prefix}.self_attn.k_norm.weight").expand(config.kv_heads, -1)
    return torch.cat((queries, keys))
