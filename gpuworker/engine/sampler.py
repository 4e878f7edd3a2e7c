"""Logits to token ids, for all rows of a step at once.

A draw depends on the row's logits, its seed and the position of the token, on nothing else: the noise of a
vocabulary entry is a hash of (seed, position, entry), turned into Gumbel noise whose argmax is a sample of
the softmax (counter-based, after SGLang's `multinomial_with_seed`). So batch mates, chunking, preemption and
restarts never change a result, and no generator state is kept.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.engine.sampling import GREEDY_BELOW

CANDIDATES = 1024  # top_p looks at this many of the most likely tokens before it sorts everything
_MASK = (1 << 64) - 1


class SamplingColumns:
    """Parameters of all slots, kept across steps and indexed by slot."""

    def __init__(self, slots: int) -> None:
        self.temperature = np.ones(slots, np.float32)
        self.top_p = np.ones(slots, np.float32)
        self.top_k = np.zeros(slots, np.int64)
        self.seed = np.zeros(slots, np.uint64)


class Sampler:
    def __init__(self, vocab_size: int) -> None:
        # The entry's counter, spread over 32 bits so that neighbours differ in many of them.
        self._entries = (torch.arange(vocab_size, dtype=torch.int64) * 0x9E3779B1).to(torch.int32)

    def sample(
        self,
        logits: Tensor,
        columns: SamplingColumns,
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> list[int]:
        """`logits` [rows, vocabulary] in float32; `positions` are those the sampled tokens will have."""
        temperature = columns.temperature[slots]
        tokens = torch.argmax(logits, dim=-1)
        drawing = np.flatnonzero(temperature >= GREEDY_BELOW)
        if drawing.size:
            index = torch.from_numpy(drawing)
            chosen = logits.index_select(0, index)
            chosen /= torch.from_numpy(temperature[drawing])[:, None]
            drawn = slots[drawing]
            _truncate(chosen, columns.top_k[drawn], columns.top_p[drawn])
            keys = noise_keys(columns.seed[drawn], positions[drawing].astype(np.uint64))
            tokens[index] = torch.argmax(chosen.sub_(exponential_log(keys, self._entries)), dim=-1)
        result: list[int] = tokens.tolist()
        return result


def noise_keys(seed: NDArray[np.uint64], position: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One 64-bit key per row, by two rounds of SplitMix64."""
    with np.errstate(over="ignore"):
        return _splitmix(_splitmix(seed) ^ position)


def _splitmix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def exponential_log(keys: NDArray[np.uint64], entries: Tensor) -> Tensor:
    """log(E), E ~ Exp(1), [rows, vocabulary]. Minus this is standard Gumbel noise.

    MurmurHash3's 32-bit finaliser over (entry, low key), the high key mixed in half way. Uniforms are taken
    as 31-bit integers near zero, where float32 is finest, because small E decide the argmax. The largest
    would round to 1 and make E infinite, so that an entry left out by top_k or top_p could win.
    """
    halves = torch.from_numpy(keys.view(np.int32).reshape(-1, 2).copy())
    bits = entries ^ halves[:, :1]
    bits ^= (bits >> 16).bitwise_and_(0xFFFF)
    bits *= -0x7A143595  # 0x85EBCA6B
    bits ^= halves[:, 1:]
    bits ^= (bits >> 13).bitwise_and_(0x7FFFF)
    bits *= -0x3D4D51CB  # 0xC2B2AE35
    bits ^= (bits >> 16).bitwise_and_(0xFFFF)
    negative = bits.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(-(2.0**-31))
    return negative.clamp_(min=-(1 - 2.0**-24)).log1p_().neg_().log_()


def _truncate(logits: Tensor, top_k: NDArray[np.int64], top_p: NDArray[np.float32]) -> None:
    """Sets entries outside top_k, then outside top_p of what is left, to -inf, in place.

    Cuts by value, not by rank, so that ties do not depend on the order a sort happens to give.
    """
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
    """Smallest logit to keep per row, from the `width` largest; and whether those were enough to know."""
    values = torch.topk(logits, width, dim=-1).values
    limit = torch.from_numpy(limits)[:, None]
    inside = torch.arange(width)[None] < limit
    largest = values[:, :1]
    mass = torch.exp(values - largest) * inside
    everything = torch.exp(logits - largest).sum(-1, keepdim=True)
    total = torch.where(limit <= width, mass.sum(-1, keepdim=True), everything)
    share = mass / total
    keep = inside & (share.cumsum(-1) - share < torch.from_numpy(top_p)[:, None])
    last = keep.sum(-1, keepdim=True).clamp_(min=1) - 1
    enough = (limit[:, 0] <= width) | ~keep[:, -1] | (width == logits.shape[-1])
    return values.gather(-1, last)[:, 0], enough
