"""Models the engine cannot run right are refused, and the message says why."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpuworker.engine.config import UnsupportedModel, config_load, config_parse
from gpuworker.engine.loader import BadWeights, Weights, weight_shapes

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in weight_shapes(config_parse(CONFIG)).items()}


def load(folder: Path) -> None:
    weights = Weights(folder, config_parse(CONFIG), torch.float32)
    for name in weight_shapes(config_parse(CONFIG)):
        weights.take(name)


def test_a_plain_llama_is_read() -> None:
    config = config_parse(CONFIG)
    assert (config.head_dim, config.kv_heads, config.kv_values_per_token) == (4, 2, 16)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "architecture"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"sliding_window": 32}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "yarn"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "key-value heads"),
        ({"head_dim": 3}, "head_dim"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_parse(CONFIG | change)


def test_a_folder_without_or_with_a_broken_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="does not exist"):
        config_load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match="not JSON"):
        config_load(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    some = tensors()
    del some["model.layers.0.mlp.up_proj.weight"]
    save_file(some, tmp_path / "model.safetensors")
    with pytest.raises(BadWeights, match=r"lacks model\.layers\.0\.mlp\.up_proj\.weight"):
        load(tmp_path)


def test_a_mis_shaped_tensor_is_named(tmp_path: Path) -> None:
    save_file(tensors() | {"model.norm.weight": torch.zeros(17)}, tmp_path / "model.safetensors")
    with pytest.raises(
        BadWeights, match=r"model\.norm\.weight has shape \(17,\), the config asks for \(16,\)"
    ):
        load(tmp_path)


def test_a_tensor_the_engine_would_ignore_is_refused(tmp_path: Path) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(16)}
    save_file(tensors() | bias, tmp_path / "model.safetensors")
    with pytest.raises(BadWeights, match=r"q_proj\.bias"):
        load(tmp_path)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    save_file(
        tensors() | {"model.norm.weight": torch.zeros(16, dtype=torch.int8)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(BadWeights, match="int8"):
        load(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(BadWeights, match=r"pytorch_model\.bin would need pickle"):
        load(tmp_path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadWeights, match="cannot be read"):
        load(tmp_path)


def test_an_index_that_names_a_missing_shard_is_refused(tmp_path: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadWeights, match="model-00002-of-00002"):
        load(tmp_path)
