"""What a weights folder says about ending a text."""

import json
from pathlib import Path

from gpuworker.manifest import Manifest


def eos_ids_load(folder: Path, manifest: Manifest) -> frozenset[int]:
    """End-of-sequence ids: `generation_config.json` overrides `config.json`, as in transformers."""
    found = manifest.config.get("eos_token_id")
    path = folder / "generation_config.json"
    if path.exists():
        found = json.loads(path.read_bytes()).get("eos_token_id", found)
    if found is None:
        return frozenset()
    return frozenset(found if isinstance(found, list) else [found])
