"""Weights the engine cannot run right are refused before any request, and the message names the file."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpuworker.engine.loader import BadWeights, Weights
from gpuworker.families.config import config_parse
from gpuworker.families.shapes import weight_shapes

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
NORM, UP = "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
INDEX = "model.safetensors.index.json"


def tensors(**changes: Any) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in weight_shapes(config_parse(CONFIG | changes)).items()}


def load(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> None:
    config = config_parse(CONFIG | changes)
    weights = Weights(folder, config, dtype)
    for name in weight_shapes(config):
        assert weights.take(name).dtype == dtype


def assert_refused(folder: Path, message: str, **changes: Any) -> None:
    with pytest.raises(BadWeights, match=message):
        load(folder, **changes)


def save(folder: Path, **changes: torch.Tensor) -> Path:
    path = folder / "model.safetensors"
    save_file(tensors() | {name.replace("__", "."): tensor for name, tensor in changes.items()}, path)
    return path


def shards_save(folder: Path) -> dict[str, str]:
    """Two shards. What the index says of them."""
    names = sorted(tensors())
    parts = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for shard, members in parts.items():
        save_file({name: tensors()[name] for name in members}, folder / shard)
    weight_map = {name: shard for shard, members in parts.items() for name in members}
    index_write(folder, json.dumps({"weight_map": weight_map}))
    return weight_map


def index_write(folder: Path, content: str) -> None:
    (folder / INDEX).write_text(content)


# -- which tensors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_whole_weights_are_read(tmp_path: Path, stored: torch.dtype) -> None:
    save_file({name: tensor.to(stored) for name, tensor in tensors().items()}, tmp_path / "m.safetensors")
    load(tmp_path)
    load(tmp_path, torch.bfloat16)


def test_what_old_checkpoints_carry_is_let_pass(tmp_path: Path) -> None:
    """And the output head of a model that says its embedding is one."""
    old = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
        "lm_head.weight": torch.zeros(32, 16),
    }
    save_file(tensors() | old, tmp_path / "model.safetensors")
    load(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    some = tensors()
    del some[UP]
    save_file(some, tmp_path / "model.safetensors")
    assert_refused(tmp_path, r"lacks model\.layers\.0\.mlp\.up_proj\.weight")


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"tie_word_embeddings": False}, "lm_head.weight"),
        ({"attention_bias": True}, "self_attn.k_proj.bias"),
        ({"mlp_bias": True}, "mlp.down_proj.bias"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "self_attn.q_proj.bias"),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": 4}, "self_attn.k_norm.weight"),
    ],
)
def test_each_family_needs_its_own_tensors(tmp_path: Path, changes: dict[str, Any], missing: str) -> None:
    save(tmp_path)
    assert_refused(tmp_path, f"lacks .*{missing}", **changes)
    save_file(tensors(**changes), tmp_path / "model.safetensors")
    load(tmp_path, **changes)


def test_a_tensor_the_engine_would_ignore_is_refused(tmp_path: Path) -> None:
    save(tmp_path, model__layers__0__self_attn__q_proj__bias=torch.zeros(16))
    assert_refused(tmp_path, r"q_proj\.bias")


def test_a_mis_shaped_tensor_is_named(tmp_path: Path) -> None:
    save(tmp_path, model__norm__weight=torch.zeros(17))
    assert_refused(
        tmp_path, r"model\.safetensors: model\.norm\.weight has shape \(17,\), the config asks for \(16,\)"
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float64])
def test_quantised_and_odd_weights_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    save(tmp_path, model__norm__weight=torch.zeros(16, dtype=dtype))
    assert_refused(tmp_path, r"model\.safetensors: model\.norm\.weight has dtype (I8|F8_E4M3|F64)")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_values_are_refused(tmp_path: Path, value: float) -> None:
    broken = torch.zeros(24, 16)
    broken[23, 15] = value
    save(tmp_path, model__layers__0__mlp__up_proj__weight=broken)
    assert_refused(tmp_path, r"model\.safetensors: model\.layers\.0\.mlp\.up_proj\.weight holds values")


def test_infinities_that_cancel_are_seen(tmp_path: Path) -> None:
    save(tmp_path, model__norm__weight=torch.tensor([torch.inf, -torch.inf] * 8))
    assert_refused(tmp_path, "not finite")


# -- which files --------------------------------------------------------------------------------------------


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert_refused(tmp_path, r"pytorch_model\.bin would need pickle")


def test_a_folder_where_a_file_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    assert_refused(tmp_path, r"model\.safetensors cannot be read")


@pytest.mark.parametrize("kept", [0, 3, 8, 100, -1, -100])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = save(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    assert_refused(tmp_path, r"model\.safetensors cannot be read")


def test_a_file_with_more_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert_refused(tmp_path, r"model\.safetensors cannot be read")


def entry(first: int, last: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


LYING_HEADERS: dict[str, Any] = {
    "overlap": {"a": entry(0, 8, 2), "b": entry(4, 12, 2)},
    "one place for two": {"a": entry(0, 12, 3), "b": entry(0, 12, 3)},
    "a gap": {"a": entry(0, 4, 1), "b": entry(8, 12, 1)},
    "beyond the end": {"a": entry(0, 8, 2), "b": entry(8, 16, 2)},
    "before the start": {"a": entry(-8, 12, 5)},
    "backwards": {"a": entry(12, 0, 3)},
    "another shape": {"a": entry(0, 12, 4)},
    "a shape that overflows": {"a": entry(0, 12, 1 << 40, 1 << 40)},
    "an unknown dtype": {"a": entry(0, 12, 3, dtype="F99")},
    "no object": [],
    "no offsets": {"a": {"dtype": "F32", "shape": [3]}},
}


@pytest.mark.parametrize("name", LYING_HEADERS)
def test_a_header_that_lies_is_refused(tmp_path: Path, name: str) -> None:
    header = json.dumps(LYING_HEADERS[name]).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    assert_refused(tmp_path, r"model\.safetensors cannot be read")


@pytest.mark.parametrize("length", [0, 1, 1 << 30, (1 << 64) - 1])
def test_a_header_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    path = save(tmp_path)
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    assert_refused(tmp_path, r"model\.safetensors cannot be read")


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    save_file({NORM: torch.ones(16)}, tmp_path / "other.safetensors")
    assert_refused(tmp_path, r"other\.safetensors and .*model\.safetensors both hold model\.norm\.weight")


# -- the index ----------------------------------------------------------------------------------------------


def test_shards_are_read_and_other_files_left_alone(tmp_path: Path) -> None:
    shards_save(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"")
    load(tmp_path)


def test_an_index_that_names_a_missing_shard_is_refused(tmp_path: Path) -> None:
    weight_map = shards_save(tmp_path) | {NORM: "model-00003-of-00002.safetensors"}
    index_write(tmp_path, json.dumps({"weight_map": weight_map}))
    assert_refused(tmp_path, r"lacks model-00003-of-00002\.safetensors, named in model\.safetensors\.index")


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "sub/inside.safetensors",
        "./model-00001-of-00002.safetensors",
        "/etc/passwd",
        "..",
        "",
        "model.bin",
        "C:\\..\\x.bin",
        None,
        5,
        ["model-00001-of-00002.safetensors"],
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, shard: Any) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    weight_map = shards_save(folder)
    for path in (tmp_path / "outside.safetensors", folder / "sub" / "inside.safetensors"):
        save_file({NORM: torch.zeros(16)}, path)
    index_write(folder, json.dumps({"weight_map": weight_map | {NORM: shard}}))
    assert_refused(folder, r"index\.json says model\.norm\.weight is in")


def test_an_index_that_says_the_wrong_shard_is_refused(tmp_path: Path) -> None:
    weight_map = shards_save(tmp_path)
    first, second = sorted(set(weight_map.values()))
    wrong = weight_map | {NORM: first if weight_map[NORM] == second else second}
    index_write(tmp_path, json.dumps({"weight_map": wrong}))
    assert_refused(tmp_path, r"index\.json does not say which file holds model\.norm\.weight")


def test_an_index_that_omits_or_invents_a_tensor_is_refused(tmp_path: Path) -> None:
    weight_map = shards_save(tmp_path)
    index_write(tmp_path, json.dumps({"weight_map": weight_map | {"invented": weight_map[NORM]}}))
    assert_refused(tmp_path, "which file holds invented")
    index_write(tmp_path, json.dumps({"weight_map": {k: v for k, v in weight_map.items() if k != NORM}}))
    assert_refused(tmp_path, r"which file holds model\.norm\.weight")


def test_an_index_that_names_a_tensor_twice_is_refused(tmp_path: Path) -> None:
    weight_map = shards_save(tmp_path)
    text = json.dumps({"weight_map": weight_map}).replace("}}", f', "{NORM}": "{weight_map[NORM]}"' + "}}")
    index_write(tmp_path, text)
    assert_refused(tmp_path, r"index\.json is not a weight index.*model\.norm\.weight stated twice")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', "[" * 100_000]
)
def test_a_broken_index_is_refused(tmp_path: Path, content: str) -> None:
    shards_save(tmp_path)
    index_write(tmp_path, content)
    assert_refused(tmp_path, r"index\.json is not a weight index")
