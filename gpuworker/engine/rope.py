"""Rotary embedding: tables of cos and sin for the kinds of scaling `families.rope` knows, and the rotation.

Computed in float32 as the reference models do (transformers' `modeling_rope_utils`).
"""

import math

import torch
from torch import Tensor

from gpuworker.families.config import ModelConfig
from gpuworker.families.fields import UnsupportedModel
from gpuworker.families.rope import LinearScaling, Llama3Scaling, YarnScaling


def rope_tables(config: ModelConfig, positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each [positions, head_dim / 2]. Raises UnsupportedModel when they are not finite."""
    rope, dim = config.rope, config.head_dim
    half = torch.arange(0, dim, 2, dtype=torch.int64).float()
    period = rope.theta ** (half / dim)
    frequency = 1.0 / period
    amplitude = 1.0
    match rope.scaling:
        case LinearScaling(factor):
            frequency = frequency / factor
        case Llama3Scaling() as scaling:
            frequency = _llama3_scaled(scaling, frequency)
        case YarnScaling() as scaling:
            frequency = _yarn_scaled(scaling, period, rope.theta)
            amplitude = scaling.attention_factor
    angle = torch.outer(torch.arange(positions).float(), frequency)
    cos, sin = (angle.cos() * amplitude).to(dtype), (angle.sin() * amplitude).to(dtype)
    if not bool(torch.isfinite(cos.sum() + sin.sum())):
        raise UnsupportedModel(f"{rope} gives values that are not finite")
    return cos, sin


def _llama3_scaled(scaling: Llama3Scaling, frequency: Tensor) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones stay, those between are blended."""
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (scaling.original_max_position / wavelength - low) / (high - low)
    blend = smooth.clamp(0, 1)
    return (1 - blend) * frequency / scaling.factor + blend * frequency


def _yarn_scaled(scaling: YarnScaling, period: Tensor, theta: float) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs that turn more than `beta_fast` times within the original context stay,
    those that turn less than `beta_slow` times are stretched by `factor`, between them a linear ramp."""
    pairs = len(period)
    dim = 2 * pairs

    def pair_turning(turns: float) -> float:
        return dim * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(pairs).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (scaling.factor * period) * (1 - kept) + 1.0 / period * kept


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [tokens, heads, head_dim] with cos and sin [tokens, 1, head_dim / 2]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
