"""Reference attention over paged KV, for the CPU and as the oracle of faster kernels.

Per layer, keys and values lie in [blocks · 16, kv_heads, head_dim]; a row's block table says where its
positions are. New keys and values are written first, then every row attends to its table. Rows that compute
one token are gathered in buckets of similar length and attended to in one call a bucket, query heads that
share a KV head side by side as queries. Rows that compute a chunk are attended to one by one.

Padding and the rest of a last block are read and masked. A masked NaN would still poison the sum, so KV
starts as zeros, and what a step with non-finite results wrote is erased. A sliding window is a mask as well:
KV outside it is kept and read, since other layers of the model may need it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.engine.block_pool import BLOCK_SIZE, blocks_for
from gpuworker.engine.plan import PlanRow

Windows = Collection[int | None]  # of the layers of a model, each once; None is no window
Masks = dict[int | None, Tensor]  # by window, additive
SMALLEST_BUCKET_BLOCKS = 4
LARGEST_BUCKET_BLOCKS = 4096  # gathered at once: 64 rows that share 8,192 tokens would take 8 times as many


@dataclass(frozen=True, slots=True)
class Bucket:
    """Decoding rows of similar length."""

    first: int  # token rows first..last of the step
    last: int
    blocks: Tensor  # [rows · width] block ids
    width: int
    masks: Masks  # [rows, 1, 1, width · 16]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row that computes several tokens."""

    first: int
    last: int
    blocks: Tensor  # [width]
    masks: Masks  # [1, 1, tokens, width · 16], causal from the chunk's offset


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What all layers of one step share."""

    slots: Tensor  # [tokens] where each token's keys and values are written
    buckets: list[Bucket]
    chunks: list[Chunk]


def attention_plan(
    rows: Sequence[PlanRow],
    tables: NDArray[np.int64],
    counts: NDArray[np.int64],
    positions: NDArray[np.int64],
    windows: Windows,
    dtype: torch.dtype,
) -> AttentionPlan:
    """`rows` with rows of one token first, shortest first; `tables` [slots, blocks] of block ids; `counts`
    [rows] of tokens computed; `positions` [tokens] of all rows, row after row; `windows` of the model."""
    slots = np.array([row.slot for row in rows], np.int64)
    owners = np.repeat(slots, counts)
    written = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    decodes = int((counts == 1).sum())
    lengths = positions[:decodes] + 1
    widths = -(-lengths // BLOCK_SIZE)
    buckets = [
        bucket_build(
            first, tables[slots[first:last], : widths[last - 1]], lengths[first:last], windows, dtype
        )
        for first, last in bucket_edges(widths)
    ]
    chunks, at = [], decodes
    for row in rows[decodes:]:
        count = len(row.tokens)
        table = tables[row.slot, : blocks_for(row.start + count)]
        chunks.append(chunk_build(at, table, row.start, count, windows, dtype))
        at += count
    return AttentionPlan(torch.from_numpy(written), buckets, chunks)


def bucket_edges(widths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of rows, sorted by width, whose widths round up to the same power of two, and that together read
    at most LARGEST_BUCKET_BLOCKS, unless it is one row."""
    classes = np.ceil(np.log2(np.maximum(widths, SMALLEST_BUCKET_BLOCKS)))
    edges = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(widths)]
    result = []
    for first, last in pairwise(edges if len(widths) else []):
        most = max(1, LARGEST_BUCKET_BLOCKS // int(widths[last - 1]))
        result += [(at, min(at + most, last)) for at in range(first, last, most)]
    return result


def bucket_build(
    first: int,
    tables: NDArray[np.int64],
    lengths: NDArray[np.int64],
    windows: Windows,
    dtype: torch.dtype,
) -> Bucket:
    """`tables` [rows, width], `lengths` [rows]: tokens from the row's first to the one computed."""
    rows, width = tables.shape
    masks = _masks(lengths - 1, width, windows, dtype)
    return Bucket(
        first,
        first + rows,
        torch.from_numpy(tables.reshape(-1)),
        width,
        {window: mask[:, None, None] for window, mask in masks.items()},
    )


def chunk_build(
    first: int, table: NDArray[np.int64], start: int, count: int, windows: Windows, dtype: torch.dtype
) -> Chunk:
    masks = _masks(np.arange(start, start + count), len(table), windows, dtype)
    return Chunk(
        first,
        first + count,
        torch.from_numpy(table),
        {window: mask[None, None] for window, mask in masks.items()},
    )


def _masks(positions: NDArray[np.int64], width: int, windows: Windows, dtype: torch.dtype) -> Masks:
    """[tokens, width · 16] for tokens at `positions`: each sees those before it, and itself."""
    seen, own = np.arange(width * BLOCK_SIZE)[None], positions[:, None]
    future = seen > own
    causal = _additive(future, dtype)
    last = int(positions.max())
    return {
        window: causal
        if window is None or last < window
        else _additive(future | (seen <= own - window), dtype)
        for window in windows
    }


def _additive(hidden: NDArray[np.bool_], dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), -torch.inf)


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    layer_keys: Tensor,
    layer_values: Tensor,
    plan: AttentionPlan,
    window: int | None,
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
            attn_mask=bucket.masks[window],
        ).reshape(rows, -1, head_dim)
    for chunk in plan.chunks:
        tokens = chunk.last - chunk.first
        seen = len(chunk.blocks) * BLOCK_SIZE
        span = (seen, kv_heads, 1, head_dim)
        heads = (kv_heads, group, seen, head_dim)
        attended = F.scaled_dot_product_attention(
            queries[chunk.first : chunk.last].view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3),
            paged_keys.index_select(0, chunk.blocks).view(span).permute(1, 2, 0, 3).expand(heads),
            paged_values.index_select(0, chunk.blocks).view(span).permute(1, 2, 0, 3).expand(heads),
            attn_mask=chunk.masks[window],
        )
        out[chunk.first : chunk.last] = attended.permute(2, 0, 1, 3).reshape(tokens, -1, head_dim)
    return out
