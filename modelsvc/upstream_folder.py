"""A model that only an upstream holds, in the weight store: its tokenizer, its settings, and what is
declared of the server, so that its digest stands for all of that. No Django here."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from gpuworker.manifest import Manifest
from gpuworker.upstream_terms import DECLARATION
from modelsvc.import_errors import ModelRejected, disk_errors
from modelsvc.weight_store import part_folder, store_lock, store_publish

_NEEDED = ("config.json", "tokenizer.json")
_OPTIONAL = (
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)


def upstream_folder_import(folder: Path, weights: Path, *, model: str, revision: str) -> Manifest:
    """`model` and `revision` as the server tells them. Raises ModelImportError."""
    for name in _NEEDED:
        if not (folder / name).is_file():
            raise ModelRejected(f"{folder} lacks {name}")
    with disk_errors(weights), store_lock(weights), part_folder(weights) as part:
        for name in (*_NEEDED, *_OPTIONAL):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, part / name)
        _check(part)
        (part / DECLARATION).write_text(json.dumps({"model": model, "revision": revision}))
        return store_publish(part, weights)


def _check(part: Path) -> None:
    try:
        config = json.loads((part / "config.json").read_bytes())
        sizes = [config[name] for name in ("vocab_size", "max_position_embeddings")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelRejected(
            f"config.json must have vocab_size and max_position_embeddings: {error!r}"
        ) from error
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ModelRejected("config.json: vocab_size and max_position_embeddings must be positive integers")
    try:
        Tokenizer.from_file(str(part / "tokenizer.json"))
    except Exception as error:  # the library raises bare exceptions
        raise ModelRejected(f"tokenizer.json cannot be read: {error}") from error
