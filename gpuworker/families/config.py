"""What the engine needs to know about a model, read from a Hugging Face `config.json`.

Llama, SmolLM2, Mistral, Qwen2 and Qwen3. A setting that would change the mathematics and that the engine does
not implement is refused by name; it is never ignored (`rules` lists them all).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuworker.families.fields import (
    Fields,
    UnsupportedModel,
    boolean,
    positive_integer,
    positive_number,
)
from gpuworker.families.rope import Rope, rope_parse
from gpuworker.families.rules import rules_check

# What transformers assumes where a family's config.json says nothing; a stated null is not an absent field.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {"model_type": "qwen2", "num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "num_key_value_heads": 32, "head_dim": 128},
}
COMMON: Mapping[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

MOST_LAYERS = 1000
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one model. A rank of a split model has one of its own, with its share of
    `heads`, `kv_heads` and `intermediate_size`; everything else is the same on all ranks."""

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
    rope: Rope
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool  # queries and keys are normed head by head, before they are rotated
    windows: tuple[int | None, ...]  # by layer: how many tokens back, itself included, a token attends to


def config_load(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{path} does not exist: not a Hugging Face model folder") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return config_parse(raw)


def config_parse(raw: dict[str, Any]) -> ModelConfig:
    """Raises UnsupportedModel for everything the engine would compute wrongly."""
    architecture = _architecture(raw)
    fields = {**COMMON, **FAMILIES[architecture], **raw}
    if fields["model_type"] != FAMILIES[architecture]["model_type"]:
        raise UnsupportedModel(f"model_type {fields['model_type']!r} does not go with {architecture}")
    rules_check(raw, fields["model_type"])
    heads = positive_integer(fields, "num_attention_heads")
    kv_heads = _integer_or(fields, "num_key_value_heads", heads)
    hidden = positive_integer(fields, "hidden_size")
    head_dim = _integer_or(fields, "head_dim", hidden // heads)
    if heads % kv_heads:
        raise UnsupportedModel(f"{heads} attention heads do not divide into {kv_heads} key-value heads")
    if head_dim % 2 or not head_dim:
        raise UnsupportedModel(f"head_dim {head_dim} is odd: rotary embedding needs pairs")
    attention_bias = boolean(fields, "attention_bias")
    return ModelConfig(
        architecture=architecture,
        vocab_size=positive_integer(fields, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=positive_integer(fields, "intermediate_size"),
        layers=_layers(fields),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=positive_integer(fields, "max_position_embeddings"),
        rms_norm_eps=positive_number(fields, "rms_norm_eps"),
        rope=rope_parse(fields),
        tied_embeddings=boolean(fields, "tie_word_embeddings"),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        mlp_bias=boolean(fields, "mlp_bias"),
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_windows(architecture, fields),
    )


def _architecture(raw: Fields) -> str:
    stated = raw.get("architectures")
    for architecture in FAMILIES:
        if stated == [architecture]:
            return architecture
    raise UnsupportedModel(f"architectures {stated!r} is not one of {', '.join(FAMILIES)}")


def _integer_or(fields: Fields, name: str, default: int) -> int:
    return default if fields.get(name) is None else positive_integer(fields, name)


def _layers(fields: Fields) -> int:
    layers = positive_integer(fields, "num_hidden_layers")
    if layers > MOST_LAYERS:
        raise UnsupportedModel(f"config.json: num_hidden_layers is {layers}, more than {MOST_LAYERS}")
    return layers


def _windows(architecture: str, fields: Fields) -> tuple[int | None, ...]:
    """A window that covers the whole context is none."""
    layers = _layers(fields)
    if architecture == "LlamaForCausalLM":
        return (None,) * layers
    sliding = [True] * layers if architecture == "MistralForCausalLM" else _sliding_layers(fields, layers)
    if not any(sliding) or fields["sliding_window"] is None:
        return (None,) * layers
    size = positive_integer(fields, "sliding_window")
    window = size if size < positive_integer(fields, "max_position_embeddings") else None
    return tuple(window if slides else None for slides in sliding)


def _sliding_layers(fields: Fields, layers: int) -> list[bool]:
    """Qwen's layers: as `layer_types` lists them, else from `max_window_layers` on."""
    stated = fields.get("layer_types")
    if stated is None:
        if not boolean(fields, "use_sliding_window"):
            return [False] * layers
        first = fields["max_window_layers"]
        if type(first) is not int:
            raise UnsupportedModel(f"config.json: max_window_layers is {first!r}, an integer is needed")
        return [index >= first for index in range(layers)]
    known = isinstance(stated, list) and all(kind in (FULL, SLIDING) for kind in stated)
    if not known or len(stated) != layers:
        raise UnsupportedModel(f"config.json: layer_types is not a list of {layers} of {FULL}, {SLIDING}")
    sliding = [kind == SLIDING for kind in stated]
    if any(sliding) and not (boolean(fields, "use_sliding_window") and fields["sliding_window"]):
        raise UnsupportedModel("layer_types names sliding layers, but use_sliding_window is off")
    return sliding
