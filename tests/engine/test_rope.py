"""Tables of the rotary embedding at the sizes of real models, against transformers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from gpuworker.engine.rope import rope_tables
from gpuworker.families.config import config_parse
from gpuworker.families.fields import UnsupportedModel

POSITIONS = 40_000
SIZES = {
    "vocab_size": 32,
    "hidden_size": 1024,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 1e5},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "llama3": {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "llama3 from its two ends": {"rope_scaling": LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 2.1}},
    "yarn": {"rope_theta": 1e6, "rope_scaling": YARN},
    "yarn by its old name": {"rope_theta": 1e6, "rope_scaling": {"type": "yarn"} | YARN},
    "yarn of the whole context": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    "yarn not truncated": {"rope_scaling": YARN | {"truncate": False}},
    "yarn betas": {"rope_scaling": YARN | {"beta_fast": 64.0, "beta_slow": 0.5}},
    "yarn one beta": {"rope_scaling": YARN | {"beta_fast": 8.0, "beta_slow": 8.0, "truncate": False}},
    "yarn attention factor": {"rope_scaling": YARN | {"attention_factor": 0.9}},
    "yarn mscale": {"rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 1.0}},
    "yarn one mscale": {"rope_scaling": YARN | {"mscale": 0.707}},
    "yarn the other mscale": {"rope_scaling": YARN | {"mscale_all_dim": 0.707}},
    "yarn that shrinks": {"rope_scaling": YARN | {"factor": 0.5}},
    "yarn beyond the ends": {"rope_theta": 100.0, "rope_scaling": YARN},
    "yarn of a tiny context": {"rope_scaling": YARN | {"original_max_position_embeddings": 4}},
}


@pytest.mark.parametrize("name", CASES)
def test_tables_equal_the_reference(name: str) -> None:
    settings = SIZES | CASES[name]
    theirs = LlamaRotaryEmbedding(LlamaConfig(**settings))  # type: ignore[no-untyped-call]
    expected = theirs(torch.zeros(1), torch.arange(POSITIONS)[None])
    config = config_parse(settings | {"architectures": ["LlamaForCausalLM"]})
    found = rope_tables(config, POSITIONS, torch.float32)
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, reference[0, :, : SIZES["head_dim"] // 2], atol=1e-6, rtol=0)


def test_settings_that_overflow_are_refused() -> None:
    scaling = {"rope_type": "linear", "factor": 1e-300}
    config = config_parse(SIZES | {"architectures": ["LlamaForCausalLM"], "rope_scaling": scaling})
    with pytest.raises(UnsupportedModel, match="not finite"):
        rope_tables(config, 16, torch.float32)
