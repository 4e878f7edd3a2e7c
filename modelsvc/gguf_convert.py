"""GGUF file to a Hugging Face llama folder with bfloat16 safetensors. No Django here.

Converting to bfloat16 loses nothing that matters: four-bit weights carry far less than its eight bits.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from modelsvc.gguf_tokenizer import tokenizer_config, tokenizer_from_gguf
from modelsvc.import_errors import ModelRejected
from modelsvc.safetensors_file import TensorInfo, safetensors_write

# Part of the name under which a finished import is remembered: raise it when the output changes.
CONVERTER_VERSION = 1

_TYPES = ("Q4_1", "Q8_0", "F32", "F16", "BF16")
_END_TOKENS = ("<|im_end|>", "<|endoftext|>")
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GGUFModel:
    fields: dict[str, Any]
    tensors: dict[str, ReaderTensor]  # by Hugging Face name

    @property
    def converted_bytes(self) -> int:
        return sum(_info(name, tensor).size_bytes for name, tensor in self.tensors.items())


def gguf_open(path: Path) -> GGUFModel:
    """Raises ModelRejected for anything but a llama of a known shape, quantisation and tokenizer."""
    try:
        reader = GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, AttributeError) as error:
        raise ModelRejected(f"{path} is no readable GGUF file: {error}") from error
    if fields.get("general.architecture") != "llama":
        raise ModelRejected(f"{path} holds a {fields.get('general.architecture')!r} model, not a llama")
    unsupported = [key for key in fields if "rope.scaling" in key or "expert" in key]
    if unsupported:
        raise ModelRejected(f"{path} needs what the engine does not do: {', '.join(unsupported)}")
    tensors = {}
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in _TYPES:
            raise ModelRejected(f"{path}: {tensor.name} is {tensor.tensor_type.name}, not one of {_TYPES}")
        tensors[_hugging_face_name(tensor.name)] = tensor
    return GGUFModel(fields, tensors)


def gguf_convert(model: GGUFModel, folder: Path, advance: Callable[[int], object]) -> None:
    """Writes every file but the manifest into `folder`. `advance` takes the bytes written so far."""
    try:
        config = _config(model)
        tokenizer = tokenizer_from_gguf(model.fields)
        extras = tokenizer_config(model.fields)
    except KeyError as error:
        raise ModelRejected(f"the GGUF file lacks the field {error}") from error
    _json_write(folder / "config.json", config)
    _json_write(folder / "tokenizer_config.json", extras)
    _json_write(folder / "generation_config.json", _generation_config(model.fields))
    tokenizer.save(str(folder / "tokenizer.json"))
    template = model.fields.get("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    safetensors_write(
        folder / "model.safetensors",
        [_info(name, model.tensors[name]) for name in sorted(model.tensors)],
        lambda info: _bfloat16(info.name, model.tensors[info.name], heads),
        advance,
    )


def _config(model: GGUFModel) -> dict[str, Any]:
    fields = model.fields
    hidden = int(fields["llama.embedding_length"])
    heads = int(fields["llama.attention.head_count"])
    head_dim = int(fields.get("llama.attention.key_length", hidden // heads))
    if int(fields.get("llama.rope.dimension_count", head_dim)) != head_dim:
        raise ModelRejected("the GGUF file rotates only part of a head, which the engine does not do")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv", heads)),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        # GGUF stores it as float32: 1e-05 comes back as 9.999999747378752e-06.
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_scaling": None,
        "rope_theta": float(fields.get("llama.rope.freq_base", 10_000.0)),
        "tie_word_embeddings": "lm_head.weight" not in model.tensors,
        "torch_dtype": "bfloat16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    ends = [int(fields["tokenizer.ggml.eos_token_id"])]
    ends += [tokens.index(token) for token in _END_TOKENS if token in tokens]
    return {
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(ends)),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def _hugging_face_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if suffix == "weight" and stem in _NAMES:
        return f"{_NAMES[stem]}.weight"
    match stem.split("."):
        case ["blk", layer, part] if suffix == "weight" and layer.isdecimal() and part in _BLOCK_NAMES:
            return f"model.layers.{int(layer)}.{_BLOCK_NAMES[part]}.weight"
    raise ModelRejected(f"the GGUF file holds a tensor the engine has no place for: {name}")


def _info(name: str, tensor: ReaderTensor) -> TensorInfo:
    return TensorInfo(name, "BF16", tuple(int(n) for n in reversed(tensor.shape)))


def _bfloat16(name: str, tensor: ReaderTensor, heads: dict[str, int]) -> bytes:
    shape = _info(name, tensor).shape
    weights: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
    if not np.isfinite(weights).all():
        raise ModelRejected(f"{name} holds values that are not finite numbers")
    for projection, head_count in heads.items():
        if f".{projection}." in name:
            weights = _unpermute(weights, head_count)
    return bfloat16_bytes(weights)


def _unpermute(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp rotates neighbouring pairs, Hugging Face halves: rows go back to (head, half, pair)."""
    pairs = weights.shape[0] // heads // 2
    return weights.reshape(heads, pairs, 2, -1).swapaxes(1, 2).reshape(weights.shape)


def bfloat16_bytes(values: NDArray[np.float32]) -> bytes:
    """Rounds to nearest, ties to even, as torch does. Finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded: NDArray[np.uint32] = bits + (0x7FFF + ((bits >> 16) & 1))
    return (rounded >> 16).astype("<u2").tobytes()


def _json_write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
