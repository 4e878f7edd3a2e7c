"""Checks a Hugging Face model folder and copies the files that may enter the weight store. No Django here.

Only data is taken: safetensors, JSON, one chat template. Pickles and Python files never leave the folder, and
a model that needs code of its own is refused.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuworker.families.config import ModelConfig, config_parse
from gpuworker.families.fields import UnsupportedModel
from gpuworker.families.shapes import WEIGHT_DTYPES, names_compare, weight_shapes
from modelsvc.import_errors import ModelRejected
from modelsvc.safetensors_file import TensorInfo, header_read

INDEX_NAME = "model.safetensors.index.json"
_OPTIONAL = (
    "chat_template.jinja",
    "generation_config.json",
    INDEX_NAME,
    "special_tokens_map.json",
    "tokenizer_config.json",
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
_COPY_BYTES = 1 << 20


def folder_files(folder: Path) -> list[Path]:
    """The files to copy. Raises ModelRejected when the folder lacks something or is unsafe."""
    if not folder.is_dir():
        raise ModelRejected(f"{folder} is not a folder")
    shards = _shard_names(folder)
    if not shards:
        if any(path for pattern in _PICKLES for path in folder.glob(pattern)):
            raise ModelRejected(
                f"{folder} holds only pickled weights, which can run code when loaded: convert them to "
                "safetensors first"
            )
        raise ModelRejected(f"{folder} holds no model.safetensors")
    optional = [name for name in _OPTIONAL if (folder / name).exists()]
    names = ["config.json", "tokenizer.json", *shards, *optional]
    for name in names:
        if not (folder / name).is_file():
            raise ModelRejected(f"{folder} lacks {name}")
    _config_check(folder)
    return [folder / name for name in names]


def folder_check_copy(files: list[Path], target: Path, advance: Callable[[int], object]) -> None:
    """Copies, then checks the copies: the originals may change while we look."""
    done_bytes = 0
    for path in files:
        with path.open("rb") as original, (target / path.name).open("wb") as copy:
            while chunk := original.read(_COPY_BYTES):
                copy.write(chunk)
                done_bytes += len(chunk)
                advance(done_bytes)
    config = _config_check(target)
    _json_read(target / "tokenizer.json")
    _complete(target)
    tensors: dict[str, TensorInfo] = {}
    found: dict[str, str] = {}
    for shard in _shard_names(target):
        header = header_read(target / shard)
        tensors |= header
        found |= dict.fromkeys(header, shard)
    if (target / INDEX_NAME).exists() and found != _json_read(target / INDEX_NAME)["weight_map"]:
        raise ModelRejected(f"{INDEX_NAME} does not say which shard holds which tensor")
    _tensors_check(tensors, config)


def _shard_names(folder: Path) -> list[str]:
    index = folder / INDEX_NAME
    if not index.exists():
        return ["model.safetensors"] if (folder / "model.safetensors").exists() else []
    weight_map = _json_read(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelRejected(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelRejected(f"{index} names a shard {name!r}")
    return names


def _config_check(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    raw = _json_read(path)
    if "auto_map" in raw:
        raise ModelRejected(f"{folder} wants to run code of its own (auto_map); that is never done here")
    try:
        return config_parse(raw)
    except UnsupportedModel as error:
        raise ModelRejected(f"{path}: {error}") from error


def _tensors_check(tensors: dict[str, TensorInfo], config: ModelConfig) -> None:
    missing, extra = names_compare(config, tensors)
    if missing:
        raise ModelRejected(f"the weights lack {missing[0]}")
    if extra:
        raise ModelRejected(f"the weights hold {extra[0]}, which a model of this config does not use")
    for name, shape in weight_shapes(config).items():
        if tensors[name].shape != shape:
            raise ModelRejected(f"{name} has shape {tensors[name].shape}, the config asks for {shape}")
    for name, info in tensors.items():
        if info.dtype not in WEIGHT_DTYPES:
            raise ModelRejected(f"{name} is {info.dtype}, not one of {', '.join(WEIGHT_DTYPES)}")


def _complete(folder: Path) -> None:
    """Writes the two files older exports keep elsewhere, so that every store folder has them."""
    template = folder / "chat_template.jinja"
    if not template.exists() and (folder / "tokenizer_config.json").exists():
        inline = _json_read(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(inline, str):
            template.write_text(inline, encoding="utf-8")
    generation = folder / "generation_config.json"
    if not generation.exists():
        config = _json_read(folder / "config.json")
        defaults = {key: config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        generation.write_text(json.dumps(defaults, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _json_read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRejected(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelRejected(f"{path} is not a JSON object")
    return value
