"""Building blocks of the forward pass: matrix products with packed weights, RMS norm, rotary embedding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gpuworker.engine.config import ModelConfig

PACKED_ROWS = 32  # batch size hint for oneDNN's weight layout; measured best or equal for 1 to 128 rows


class Linear:
    """`x @ weight.T`. On the CPU the weight is packed once into oneDNN's blocked layout.

    Measured on 2 cores with the shapes of SmolLM2-135M, a whole step's products, plain against packed:
    bf16 10.1 → 6.6 ms (1 row), 24 → 14.5 ms (32 rows); fp32 32 → 15 ms and 91 → 27 ms. Packed products also
    give bit-equal rows whatever the batch size, so batch mates do not perturb a row.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = _can_pack(weight)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
            if self._packed
            else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
            return result
        return F.linear(x, self._weight)


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rope_tables(config: ModelConfig, positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each [positions, head_dim / 2], computed in float32 as the reference models do."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float()
    frequency = 1.0 / (config.rope_theta ** (half / config.head_dim))
    if config.rope_scaling is not None:
        frequency = _llama3_scaled(config, frequency)
    angle = torch.outer(torch.arange(positions).float(), frequency)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _llama3_scaled(config: ModelConfig, frequency: Tensor) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones stay, those between are blended."""
    scaling = config.rope_scaling
    assert scaling is not None
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (scaling.original_max_position / wavelength - low) / (high - low)
    blend = smooth.clamp(0, 1)
    return (1 - blend) * frequency / scaling.factor + blend * frequency


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [tokens, heads, head_dim] with cos and sin [tokens, 1, head_dim / 2]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
