"""Paged attention of any mix of rows equals attention written out, head by head and token by token."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpuworker.engine.attention import (
    LARGEST_BUCKET_BLOCKS,
    attention_plan,
    bucket_edges,
    paged_attention,
)
from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.plan import PlanRow, SequenceKey

KV_HEADS, GROUP, HEAD_DIM, ROW_BLOCKS = 2, 3, 8, 12
WINDOWS = (None, 1, 5, 16, 17, 40, 1000)
ROWS = st.lists(st.tuples(st.integers(0, 150), st.integers(1, 40)), min_size=1, max_size=6)


def expected_rows(queries: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None) -> Tensor:
    """`queries` [tokens, heads, head_dim] from `start` on; `keys`, `values` [positions, kv_heads, dim]."""
    out = torch.empty_like(queries)
    for token in range(len(queries)):
        last = start + token
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(KV_HEADS * GROUP):
            seen = slice(first, last + 1)
            scores = keys[seen, head // GROUP] @ queries[token, head] / HEAD_DIM**0.5
            out[token, head] = scores.softmax(0) @ values[seen, head // GROUP]
    return out


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(WINDOWS), st.integers(0, 1 << 32))
def test_any_mix_of_rows_in_any_window(spans: list[tuple[int, int]], window: int | None, seed: int) -> None:
    # Given rows of some past on blocks in no order, in memory that holds other values elsewhere
    generator = torch.Generator().manual_seed(seed)
    blocks = len(spans) * ROW_BLOCKS
    cache = torch.randn(2, blocks * BLOCK_SIZE, KV_HEADS, HEAD_DIM, generator=generator)
    tables = np.random.default_rng(seed).permutation(blocks).reshape(len(spans), ROW_BLOCKS)
    rows = [
        PlanRow(SequenceKey("", slot), slot, start, [0] * count, 0, [], True)
        for slot, (start, count) in enumerate(spans)
    ]
    rows.sort(key=lambda row: (len(row.tokens) > 1, row.start))
    counts = np.array([len(row.tokens) for row in rows])
    positions = np.concatenate([np.arange(row.start, row.start + len(row.tokens)) for row in rows])
    total = int(counts.sum())
    queries = torch.randn(total, KV_HEADS * GROUP, HEAD_DIM, generator=generator)
    new = torch.randn(2, total, KV_HEADS, HEAD_DIM, generator=generator)
    # When they attend, in a model that has other windows too
    plan = attention_plan(rows, tables, counts, positions, {None, 7, window}, torch.float32)
    found = paged_attention(queries, new[0], new[1], cache[0], cache[1], plan, window)
    # Then each token saw its row's past and itself, as far as the window goes
    ends = counts.cumsum()
    for row, end, count in zip(rows, ends, counts, strict=True):
        places = [
            tables[row.slot, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for position in range(row.start + count)
        ]
        keys, values = cache[:, places]
        part = slice(end - count, end)
        torch.testing.assert_close(keys[row.start :], new[0, part], atol=0, rtol=0)
        expected = expected_rows(queries[part], keys, values, row.start, window)
        torch.testing.assert_close(found[part], expected, atol=1e-5, rtol=0)


@given(st.lists(st.integers(1, 3 * LARGEST_BUCKET_BLOCKS), max_size=40).map(sorted))
def test_buckets_hold_each_row_once_and_never_gather_without_bound(widths: list[int]) -> None:
    # Rows may share their blocks (n, prefix cache): what is gathered can exceed what the pool holds.
    edges = bucket_edges(np.array(widths, np.int64))
    assert [row for first, last in edges for row in range(first, last)] == list(range(len(widths)))
    for first, last in edges:
        assert last - first == 1 or (last - first) * widths[last - 1] <= LARGEST_BUCKET_BLOCKS


def test_rows_of_a_full_step_of_usual_length_are_one_bucket() -> None:
    assert bucket_edges(np.full(64, 64)) == [(0, 64)]
