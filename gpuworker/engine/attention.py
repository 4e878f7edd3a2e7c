"""Reference attention over paged KV, for the CPU and as the oracle of faster kernels.

Per layer, keys and values lie in [blocks · 16, kv_heads, head_dim]; a row's block table says where its
positions are. New keys and values are written first, then every row attends to its table. Rows that compute
one token are gathered in buckets of similar length and attended to in one call a bucket, query heads that
share a KV head side by side as queries. Rows that compute a chunk are attended to one by one.

Padding and the rest of a last block are read and masked. A masked NaN would still poison the sum, so KV
starts as zeros, and what a step with non-finite results wrote is erased.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.engine.block_pool import BLOCK_SIZE

SMALLEST_BUCKET_BLOCKS = 4


class KVCache:
    def __init__(self, layers: int, blocks: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.keys = torch.zeros(layers, blocks * BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)
        self.values = torch.zeros_like(self.keys)

    def erase(self, slots: Tensor) -> None:
        self.keys.index_fill_(1, slots, 0)
        self.values.index_fill_(1, slots, 0)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Decoding rows of similar length."""

    first: int  # token rows first..last of the step
    last: int
    blocks: Tensor  # [rows · width] block ids
    width: int
    mask: Tensor  # [rows, 1, 1, width · 16], additive


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row that computes several tokens."""

    first: int
    last: int
    blocks: Tensor  # [width]
    mask: Tensor  # [1, 1, tokens, width · 16], additive, causal from the chunk's offset


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What all layers of one step share."""

    slots: Tensor  # [tokens] where each token's keys and values are written
    buckets: list[Bucket]
    chunks: list[Chunk]


def bucket_edges(widths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of rows, sorted by width, whose widths round up to the same power of two."""
    classes = np.ceil(np.log2(np.maximum(widths, SMALLEST_BUCKET_BLOCKS)))
    edges = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(widths)]
    return list(pairwise(edges)) if len(widths) else []


def bucket_build(
    first: int, tables: NDArray[np.int64], lengths: NDArray[np.int64], dtype: torch.dtype
) -> Bucket:
    """`tables` [rows, width], `lengths` [rows]: tokens each row attends to."""
    rows, width = tables.shape
    hidden = np.arange(width * BLOCK_SIZE)[None] >= lengths[:, None]
    mask = torch.zeros(rows, 1, 1, width * BLOCK_SIZE, dtype=dtype)
    mask.masked_fill_(torch.from_numpy(hidden)[:, None, None], -torch.inf)
    return Bucket(first, first + rows, torch.from_numpy(tables.reshape(-1)), width, mask)


def chunk_build(first: int, table: NDArray[np.int64], start: int, count: int, dtype: torch.dtype) -> Chunk:
    seen = np.arange(start, start + count)[:, None]
    hidden = np.arange(len(table) * BLOCK_SIZE)[None] > seen
    mask = torch.zeros(1, 1, count, len(table) * BLOCK_SIZE, dtype=dtype)
    mask.masked_fill_(torch.from_numpy(hidden)[None, None], -torch.inf)
    return Chunk(first, first + count, torch.from_numpy(table), mask)


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    layer_keys: Tensor,
    layer_values: Tensor,
    plan: AttentionPlan,
) -> Tensor:
    """`queries` [tokens, heads, head_dim], new `keys` and `values` [tokens, kv_heads, head_dim]; the layer's
    cache is written in place. Returns [tokens, heads, head_dim]."""
    layer_keys.index_copy_(0, plan.slots, keys)
    layer_values.index_copy_(0, plan.slots, values)
    _, kv_heads, head_dim = layer_keys.shape
    group = queries.shape[1] // kv_heads
    paged_keys = layer_keys.view(-1, BLOCK_SIZE * kv_heads * head_dim)
    paged_values = layer_values.view(-1, BLOCK_SIZE * kv_heads * head_dim)
    out = torch.empty_like(queries)
    for bucket in plan.buckets:
        rows = bucket.last - bucket.first
        shape = (rows, bucket.width * BLOCK_SIZE, kv_heads, head_dim)
        out[bucket.first : bucket.last] = F.scaled_dot_product_attention(
            queries[bucket.first : bucket.last].view(rows, kv_heads, group, head_dim),
            paged_keys.index_select(0, bucket.blocks).view(shape).transpose(1, 2),
            paged_values.index_select(0, bucket.blocks).view(shape).transpose(1, 2),
            attn_mask=bucket.mask,
        ).reshape(rows, -1, head_dim)
    for chunk in plan.chunks:
        tokens = chunk.last - chunk.first
        span = (chunk.mask.shape[-1], kv_heads, 1, head_dim)
        heads = (kv_heads, group, chunk.mask.shape[-1], head_dim)
        attended = F.scaled_dot_product_attention(
            queries[chunk.first : chunk.last].view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3),
            paged_keys.index_select(0, chunk.blocks).view(span).permute(1, 2, 0, 3).expand(heads),
            paged_values.index_select(0, chunk.blocks).view(span).permute(1, 2, 0, 3).expand(heads),
            attn_mask=chunk.mask,
        )
        out[chunk.first : chunk.last] = attended.permute(2, 0, 1, 3).reshape(tokens, -1, head_dim)
    return out
