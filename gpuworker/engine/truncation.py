"""Which entries may be drawn: min_p, then top_k, then top_p of what is left.

Cuts by value, not by rank, so that ties do not depend on the order a sort happens to give.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CANDIDATES = 1024  # top_p looks at this many of the most likely tokens before it sorts everything


def truncate(
    logits: Tensor, min_p: NDArray[np.float32], top_k: NDArray[np.int64], top_p: NDArray[np.float32]
) -> None:
    """Sets entries outside to -inf, in place. `logits` [rows, vocabulary] are those after temperature."""
    _cut_min_p(logits, min_p)
    _cut_top(logits, top_k, top_p)


def _cut_min_p(logits: Tensor, min_p: NDArray[np.float32]) -> None:
    """Entries less likely than `min_p` times the most likely one (Nguyen et al., Min-p sampling, 2024)."""
    rows = np.flatnonzero(min_p > 0)
    if not rows.size:
        return
    index = torch.from_numpy(rows)
    picked = logits.index_select(0, index)
    threshold = picked.amax(-1, keepdim=True) + torch.from_numpy(np.log(min_p[rows]))[:, None]
    logits[index] = picked.masked_fill_(picked < threshold, -torch.inf)


def _cut_top(logits: Tensor, top_k: NDArray[np.int64], top_p: NDArray[np.float32]) -> None:
    vocabulary = logits.shape[-1]
    rows = np.flatnonzero(((top_k > 0) & (top_k < vocabulary)) | (top_p < 1))
    if not rows.size:
        return
    limits = np.where(top_k[rows] > 0, np.minimum(top_k[rows], vocabulary), vocabulary)
    index = torch.from_numpy(rows)
    picked = logits.index_select(0, index)
    wide = bool((top_p[rows] < 1).any())
    ranked = limits[limits < vocabulary]
    width = min(vocabulary, max(CANDIDATES if wide else 1, int(ranked.max()) if ranked.size else 1))
    threshold, enough = _thresholds(picked, limits, top_p[rows], width)
    if not enough.all():
        some = torch.from_numpy(np.flatnonzero(~enough.numpy()))
        exact, _ = _thresholds(picked[some], limits[some.numpy()], top_p[rows][some.numpy()], vocabulary)
        threshold[some] = exact
    logits[index] = picked.masked_fill_(picked < threshold[:, None], -torch.inf)


def _thresholds(
    logits: Tensor, limits: NDArray[np.int64], top_p: NDArray[np.float32], width: int
) -> tuple[Tensor, Tensor]:
    """Smallest logit to keep per row, from the `width` largest; and whether those were enough to know.

    Nothing here may round differently with `width` or with the number of rows, which mates decide: softmax
    and cumsum go row by row, where a plain sum does not."""
    vocabulary = logits.shape[-1]
    values, ids = torch.topk(logits, width, dim=-1)
    limit = torch.from_numpy(limits)[:, None]
    inside = (torch.arange(width)[None] < limit) & (values > -torch.inf)
    share = torch.softmax(logits, -1).gather(-1, ids) * inside
    running = share.cumsum(-1)
    total = torch.where(limit < vocabulary, running[:, -1:], 1.0)
    reached = np.where(top_p < 1, top_p, np.inf).astype(np.float32)  # 1 cuts nothing, not even by rounding
    keep = inside & (running - share < torch.from_numpy(reached)[:, None] * total)
    last = keep.sum(-1, keepdim=True).clamp_(min=1) - 1
    enough = (limit[:, 0] < vocabulary) | ~keep[:, -1] | (width == vocabulary)
    return values.gather(-1, last)[:, 0], enough
