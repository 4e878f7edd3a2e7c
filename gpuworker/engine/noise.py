"""The randomness of sampling: a hash of (seed, position, vocabulary entry), no generator state.

Turned into Gumbel noise whose argmax is a sample of the softmax (counter-based, after SGLang's
`multinomial_with_seed`).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def noise_entries(vocab_size: int) -> Tensor:
    """Each entry's counter, spread over 32 bits so that neighbours differ in many of them."""
    return (torch.arange(vocab_size, dtype=torch.int64) * 0x9E3779B1).to(torch.int32)


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
