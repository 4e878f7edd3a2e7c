"""Which safetensors files of a folder hold a model's tensors. Nothing outside the folder is ever opened."""

import json
from pathlib import Path
from typing import Any

INDEX_NAME = "model.safetensors.index.json"


class BadWeights(Exception):
    """The weights on disk are not the ones the config describes; the message names the file or tensor."""

    code = "bad_weights"


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """Files, and what the index says: the file of each tensor. Raises BadWeights."""
    index = folder / INDEX_NAME
    if index.exists():
        weight_map = _index_read(index)
        names = sorted(set(weight_map.values()))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise BadWeights(f"{folder} lacks {some(missing)}, named in {index.name}")
        return [folder / name for name in names], weight_map
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        hint = f" ({some(others)} would need pickle, which is refused)" if others else ""
        raise BadWeights(f"{folder} holds no safetensors file{hint}")
    return files, None


def some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _index_read(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes(), object_pairs_hook=_unique)["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadWeights(f"{index} is not a weight index: {error!r}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadWeights(f"{index} is not a weight index: weight_map is not an object with tensors")
    for tensor, name in weight_map.items():
        # A plain name can neither leave the folder nor name one file in two ways.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise BadWeights(f"{index} says {tensor} is in {name!r}, not a safetensors file of this folder")
    return weight_map


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{some(sorted({name for name in names if names.count(name) > 1}))} stated twice")
    return found
