"""What a config.json may say: read as transformers reads it, harmless, or refused by name."""

import inspect
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from gpuworker.families.config import config_load, config_parse
from gpuworker.families.fields import UnsupportedModel
from gpuworker.families.rules import HARMLESS, READ, READ_BY_FAMILY, REFUSED

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
CONFIG = SIZES | {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2}
WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0}


def family(name: str, **settings: Any) -> dict[str, Any]:
    return SIZES | {"architectures": [ARCHITECTURES[name]], "num_key_value_heads": 2} | settings


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_every_field_of_transformers_is_considered(config_class: type[PretrainedConfig]) -> None:
    """A field that a new version brings is read, or known to be harmless, or refused."""
    stated = set(config_class().to_dict())
    arguments = {*inspect.signature(config_class.__init__).parameters} - {"self", "kwargs"}
    arguments |= {*inspect.signature(PretrainedConfig.__init__).parameters} - {"self", "kwargs"}
    considered = READ | READ_BY_FAMILY[config_class.model_type] | HARMLESS | REFUSED
    assert not (stated | arguments) - considered


def test_no_field_is_in_two_lists() -> None:
    read = READ.union(*READ_BY_FAMILY.values())
    assert not read & HARMLESS
    assert not REFUSED & (read | HARMLESS)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_absent_fields_have_the_defaults_of_transformers(name: str) -> None:
    sizes = SIZES | {"num_attention_heads": 32, "hidden_size": 128, "max_position_embeddings": 8192}
    theirs = AutoConfig.for_model(name, **sizes)
    ours = config_parse(sizes | {"architectures": [ARCHITECTURES[name]]})
    assert ours.kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 128 // 32)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope.theta == theirs.rope_theta
    assert ours.rope.scaling is None
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert set(ours.windows) == {theirs.sliding_window if name == "mistral" else None}
    assert (ours.qkv_bias, ours.output_bias, ours.mlp_bias) == (name == "qwen2", False, False)
    assert ours.qk_norm == (name == "qwen3")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_transformers_saves_is_read(name: str, tmp_path: Path) -> None:
    saved = AutoConfig.for_model(name, **family(name, num_key_value_heads=4), eos_token_id=[1, 2])
    saved.save_pretrained(tmp_path)
    config = config_load(tmp_path)
    assert (config.layers, config.kv_heads) == (3, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 1.0}},
        {"rope_theta": 500000},
        {"rope_theta": 5e5, "rope_scaling": None, "rope_parameters": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_both_spellings_of_the_rotary_settings_are_read(change: dict[str, Any]) -> None:
    rope = config_parse(CONFIG | change).rope
    assert (rope.theta, rope.scaling) == (5e5, None)


def test_a_rotary_base_of_a_very_long_context_is_read() -> None:
    """Llama-3-8B-Instruct-Gradient-1048k has the first."""
    for theta in (3_580_165_449.0, 10**12):
        assert config_parse(CONFIG | {"rope_theta": theta}).rope.theta == theta


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        (family("mistral", sliding_window=8), (8, 8, 8)),
        (family("mistral", sliding_window=None), (None, None, None)),
        (family("mistral", sliding_window=64), (None, None, None)),
        (family("mistral", sliding_window=8, use_sliding_window=False), (8, 8, 8)),
        (family("qwen2", sliding_window=8), (None, None, None)),
        (family("qwen2", **WINDOWED), (None, 8, 8)),
        (family("qwen2", **WINDOWED | {"max_window_layers": 3}), (None, None, None)),
        (family("qwen2", **WINDOWED | {"sliding_window": None}), (None, None, None)),
        (family("qwen3", **WINDOWED | {"max_window_layers": 0}), (8, 8, 8)),
        (
            family(
                "qwen3", **WINDOWED, layer_types=["sliding_attention", "full_attention", "full_attention"]
            ),
            (8, None, None),
        ),
        (family("qwen3", layer_types=["full_attention"] * 3), (None, None, None)),
    ],
)
def test_windows_by_layer(change: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert config_parse(change).windows == windows


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_a_field_that_switches_nothing_on_is_ignored(value: Any) -> None:
    assert config_parse(CONFIG | {"quantization_config": value, "some_new_field": value})


ROPE_FIELDS = ["rope_type", "type", "rope_theta", *sorted(LLAMA3 | YARN), "beta_fast", "mscale", "truncate"]
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
    ({"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]}, "architectures"),
    ({"architectures": None}, "architectures"),
    ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ({"architectures": [["LlamaForCausalLM"]]}, "architectures"),
    ({"model_type": "qwen2"}, "model_type"),
    ({"model_type": None}, "model_type"),
    ({"hidden_size": "big"}, "hidden_size"),
    ({"hidden_size": None}, "hidden_size"),
    ({"hidden_size": 16.0}, "hidden_size"),
    ({"num_hidden_layers": True}, "num_hidden_layers"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"max_position_embeddings": 10**400}, "max_position_embeddings"),
    ({"rope_theta": 10**400}, "rope_theta"),
    ({"vocab_size": 0}, "vocab_size"),
    ({"intermediate_size": -1}, "intermediate_size"),
    ({"num_key_value_heads": 3}, "key-value heads"),
    ({"num_key_value_heads": "2"}, "num_key_value_heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads"),
    ({"head_dim": 3}, "head_dim"),
    ({"head_dim": 0}, "head_dim"),
    ({"num_attention_heads": 32}, "head_dim"),
    ({"rms_norm_eps": None}, "rms_norm_eps"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    ({"tie_word_embeddings": None}, "tie_word_embeddings"),
    ({"attention_bias": 1}, "attention_bias"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"hidden_act": None}, "hidden_act"),
    ({"sliding_window": 8}, "sliding_window"),
    ({"layer_types": ["full_attention"] * 3}, "layer_types"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"attention_sinks": 4}, "attention_sinks"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ({"num_local_experts": 8}, "num_local_experts"),
    ({"num_experts": 8}, "num_experts"),
    ({"auto_map": {"AutoModel": "evil.Evil"}}, "auto_map"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ({"add_cross_attention": True}, "add_cross_attention"),
    ({"rope_interleaved": True}, "rope_interleaved"),
    ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
    ({"original_max_position_embeddings": 16}, "original_max_position_embeddings"),
    ({"rope_theta": None}, "rope_theta"),
    ({"rope_theta": "1e4"}, "rope_theta"),
    ({"rope_theta": 1}, "rope_theta"),
    ({"rope_scaling": "yarn"}, "rope_scaling"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 4}}, "longrope"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "dynamic"),
    ({"rope_scaling": {"rope_type": ["yarn"]}}, "yarn"),
    ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1]}}, "mrope"),
    ({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1]}}, "mrope_section"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    ({"rope_scaling": YARN | {"factor": "4"}}, "factor"),
    ({"rope_scaling": YARN | {"factor": None}}, "factor"),
    ({"rope_scaling": YARN | {"beta_slow": 40.0}}, "beta_slow"),
    ({"rope_scaling": YARN | {"truncate": 1}}, "truncate"),
    ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "attention_factor"),
    ({"rope_scaling": YARN | {"mscale": "1", "mscale_all_dim": 1}}, "mscale"),
    ({"rope_scaling": YARN | {"short_factor": [1.0]}}, "short_factor"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": None}}, "original_max_position_embedd"),
    ({"rope_scaling": YARN, "rope_parameters": LLAMA3}, "both rope_scaling and rope_parameters"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    (family("mistral", attention_bias=True), "attention_bias"),
    (family("mistral", sliding_window="8"), "sliding_window"),
    (family("mistral", sliding_window=0), "sliding_window"),
    (family("mistral", layer_types=["full_attention"] * 3), "layer_types"),
    (family("qwen2", attention_bias=True), "attention_bias"),
    (family("qwen2", use_sliding_window=None), "use_sliding_window"),
    (family("qwen2", **WINDOWED | {"max_window_layers": None}), "max_window_layers"),
    (family("qwen2", layer_types=["sliding_attention"] * 3), "use_sliding_window"),
    (family("qwen2", **WINDOWED, layer_types=["sliding_attention"] * 2), "layer_types"),
    (family("qwen2", **WINDOWED, layer_types=["chunked_attention"] * 3), "layer_types"),
    (family("qwen2", **WINDOWED, layer_types=[[]] * 3), "layer_types"),
    (family("qwen3", mlp_bias=True), "mlp_bias"),
]


@pytest.mark.parametrize(("change", "named"), REFUSALS)
def test_what_would_be_computed_wrongly_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_parse(CONFIG | change)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["yarn", "llama3", "linear", "full_attention", "silu", 8, 64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ROPE_FIELDS), inner),
)
READ_FIELDS = sorted(READ.union(*READ_BY_FAMILY.values()) - {"architectures"})


@given(st.sampled_from(sorted(ARCHITECTURES)), st.dictionaries(st.sampled_from(READ_FIELDS), VALUES))
def test_whatever_a_field_holds_it_is_read_or_refused(name: str, changes: dict[str, Any]) -> None:
    with suppress(UnsupportedModel):
        config = config_parse(family(name) | changes)
        assert config.heads % config.kv_heads == 0
        assert len(config.windows) == config.layers


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"config\.json is not"):
        config_load(tmp_path)


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="does not exist"):
        config_load(tmp_path)


def test_a_huge_number_is_no_number(tmp_path: Path) -> None:
    """Python reads 1e999 as infinity and NaN as a float."""
    for literal in ("1e999", "NaN"):
        text = json.dumps(CONFIG | {"rms_norm_eps": 0.5}).replace("0.5", literal)
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UnsupportedModel, match="rms_norm_eps"):
            config_load(tmp_path)
