"""What a weights folder says about its tokens, checked before any request: how a text ends, and whether the
tokenizer goes with the model."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gpuworker.backends.base import BackendError
from gpuworker.manifest import Manifest


def eos_ids_load(folder: Path, manifest: Manifest) -> frozenset[int]:
    """End-of-sequence ids: `generation_config.json` overrides `config.json`, as in transformers. Raises
    BackendError."""
    path, fields = folder / "config.json", manifest.config
    generation = folder / "generation_config.json"
    if generation.exists():
        overriding = _object_read(generation)
        if "eos_token_id" in overriding:
            path, fields = generation, overriding
    found: Any = fields.get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise BackendError(f"{path}: eos_token_id is {found!r}, not token ids")
    return frozenset(ids)


def tokenizer_check(folder: Path, vocab_size: int, eos_ids: frozenset[int]) -> None:
    """Raises BackendError for a tokenizer that does not go with a model of `vocab_size` entries. A smaller
    one does: vocabularies are padded."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
        spoken = tokenizer.encode("").ids  # what is put around every text: its ids are stated apart
    except Exception as error:  # the library raises bare exceptions: no such file, not JSON, unknown parts
        raise BackendError(f"{path} cannot be read: {error}") from error
    known = set(tokenizer.get_vocab(with_added_tokens=True).values())
    if not known:
        raise BackendError(f"{path} has no tokens")
    if (last := max(known.union(spoken))) >= vocab_size:
        raise BackendError(f"{path} has ids up to {last}, the model's vocabulary has {vocab_size} entries")
    if strangers := sorted(eos_ids - known):
        raise BackendError(f"{path} does not know the end-of-sequence ids {strangers}")


def _object_read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BackendError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise BackendError(f"{path} is not a JSON object")
    return value
