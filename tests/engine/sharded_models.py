"""Tiny random models with four KV heads, to be split over ranks."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gpuworker.families.config import config_parse
from gpuworker.families.shapes import weight_shapes
from tests.engine.support import EOS, tokenizer_file

COMMON = {
    "vocab_size": EOS + 1,  # odd: the head's halves are padded
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": False}
MODELS = {"llama with all biases": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3}
BROKEN = 250  # this token overflows in the heads of rank 1, and only there
BAN = [(BROKEN, -100.0)]


def model_save(folder: Path, settings: dict[str, Any]) -> Path:
    """Random, but the same ones each time."""
    raw = COMMON | settings
    config = config_parse(raw)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.3 + name.endswith("norm.weight")
        for name, shape in weight_shapes(config).items()
    }
    embedding = tensors["model.embed_tokens.weight"]
    embedding[:, -1] = 0
    embedding[BROKEN] = 0
    embedding[BROKEN, -1] = 1
    tensors["model.layers.0.input_layernorm.weight"][-1] = 1
    tensors["model.layers.0.self_attn.v_proj.weight"][-1, -1] = 3e38  # of the last head
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    tokenizer_file(folder)
    return folder
