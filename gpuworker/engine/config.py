"""What the engine needs to know about a model, read from a Hugging Face `config.json`.

The Llama family only (Llama, SmolLM2, Mistral). A setting that would change the mathematics and that the
engine does not implement is refused by name; it is never ignored. No torch here.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


class UnsupportedModel(Exception):
    """The engine cannot run this model; the message names the setting."""

    code = "unsupported_model"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's frequency scaling, the only kind supported."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_embeddings: bool

    @property
    def kv_values_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim


def config_load(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{path} does not exist: not a Hugging Face model folder") from error
    except json.JSONDecodeError as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from error
    return config_parse(raw)


def config_parse(raw: dict[str, Any]) -> ModelConfig:
    """Raises UnsupportedModel for everything the engine would compute wrongly."""
    architecture = (raw.get("architectures") or ["(none)"])[0]
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(f"architecture {architecture} is not one of {', '.join(ARCHITECTURES)}")
    hidden, heads = _integer(raw, "hidden_size"), _integer(raw, "num_attention_heads")
    rope = raw.get("rope_parameters") or {}  # transformers 5 moved both rope settings in here
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_integer(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_integer(raw, "intermediate_size"),
        layers=_integer(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or hidden // heads,
        max_position=_integer(raw, "max_position_embeddings"),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        rope_scaling=_rope_scaling(rope or raw.get("rope_scaling") or {}),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )
    if config.heads % config.kv_heads:
        raise UnsupportedModel(
            f"{heads} attention heads do not divide into {config.kv_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise UnsupportedModel(f"head_dim {config.head_dim} is odd: rotary embedding needs pairs")
    for name in ("attention_bias", "mlp_bias", "quantization_config"):
        if raw.get(name):
            raise UnsupportedModel(f"{name} is set: not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"hidden_act {raw['hidden_act']} is not supported, only silu")
    if float(raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not supported")
    window = raw.get("sliding_window")
    if window is not None and window < config.max_position:
        raise UnsupportedModel(
            f"sliding_window {window} below the context {config.max_position} is not supported"
        )
    return config


def _integer(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UnsupportedModel(f"config.json: {name} is {value!r}, a positive integer is needed")
    return value


def _rope_scaling(raw: dict[str, Any]) -> RopeScaling | None:
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModel(f"rope scaling {kind} is not supported, only llama3")
    return RopeScaling(
        factor=float(raw["factor"]),
        low_freq_factor=float(raw["low_freq_factor"]),
        high_freq_factor=float(raw["high_freq_factor"]),
        original_max_position=int(raw["original_max_position_embeddings"]),
    )
