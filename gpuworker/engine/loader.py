"""Weights from safetensors files in the Hugging Face layout. Never pickle.

`Weights` hands out each tensor once and checks its shape; what is missing, mis-shaped or left over is named.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpuworker.engine.config import ModelConfig

IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # old checkpoints carry it; it is computed from the config


class BadWeights(Exception):
    """The weights on disk are not the ones the config describes; the message names the tensor."""

    code = "bad_weights"


class Weights:
    """The tensors of one folder, converted to one dtype as they are taken."""

    def __init__(self, folder: Path, config: ModelConfig, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._shapes = weight_shapes(config)
        self._files = {}
        for path in _files(folder):
            try:
                handle = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise BadWeights(f"{path} cannot be read: {error}") from error
            self._files.update(dict.fromkeys(handle.keys(), handle))  # type: ignore[no-untyped-call]
        present = {name for name in self._files if not name.endswith(IGNORED_SUFFIXES)}
        if config.tied_embeddings:
            present.discard("lm_head.weight")
        if missing := sorted(self._shapes.keys() - present):
            raise BadWeights(f"{folder} lacks {_some(missing)}")
        if extra := sorted(present - self._shapes.keys()):
            raise BadWeights(f"{folder} holds tensors the engine would not use: {_some(extra)}")

    def take(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)  # type: ignore[no-untyped-call]
        if tuple(tensor.shape) != self._shapes[name]:
            raise BadWeights(
                f"{name} has shape {tuple(tensor.shape)}, the config asks for {self._shapes[name]}"
            )
        if not tensor.is_floating_point():
            raise BadWeights(f"{name} has dtype {tensor.dtype}: quantised weights are not supported")
        return tensor.to(self._dtype)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a model of the Llama family consists of."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.layers):
        layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, AttributeError) as error:
            raise BadWeights(f"{index} is not a weight index: {error!r}") from error
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise BadWeights(f"{folder} lacks {_some(missing)}, named in {index.name}")
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        hint = f" ({_some(others)} would need pickle, which is refused)" if others else ""
        raise BadWeights(f"{folder} holds no safetensors file{hint}")
    return files


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
