"""What a folder of weights consists of, and the digest that names it. Standard library only.

A folder in the weight store is named by its digest. The digest covers the SHA-256 of every file and the
parsed config, so whoever verified the folder knows exactly which model it is about to run. The manifest
file itself is only accepted in its canonical form: no byte of the folder can change unnoticed.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


class WeightsMismatch(Exception):
    """The folder does not hold what its manifest says. The message names the first difference."""

    code = "weights_mismatch"


@dataclass(frozen=True, slots=True)
class ManifestFile:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    digest: str
    files: tuple[ManifestFile, ...]  # sorted by name
    config: Mapping[str, Any]  # config.json, parsed

    @property
    def max_context_tokens(self) -> int:
        return int(self.config["max_position_embeddings"])

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        return {
            "config": dict(self.config),
            "digest": self.digest,
            "files": [
                {"name": file.name, "sha256": file.sha256, "size_bytes": file.size_bytes}
                for file in self.files
            ],
            "format": FORMAT_VERSION,
        }


def manifest_build(folder: Path) -> Manifest:
    """Hash every file of the folder. Raises WeightsMismatch when it is no flat folder with a config.json."""
    files = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name == MANIFEST_NAME:
            continue
        if path.is_symlink() or not path.is_file():
            raise WeightsMismatch(f"{path} is not a plain file")
        files.append(ManifestFile(path.name, path.stat().st_size, sha256_file(path)))
    config = _config_read(folder)
    return Manifest(_digest(tuple(files), config), tuple(files), config)


def manifest_write(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST_NAME).write_bytes(_canonical(manifest.as_dict()))


def manifest_load(folder: Path) -> Manifest:
    """Read and check the manifest file alone; the files it lists are not opened."""
    path = folder / MANIFEST_NAME
    try:
        raw = path.read_bytes()
        fields = json.loads(raw)
        files = tuple(
            ManifestFile(str(file["name"]), int(file["size_bytes"]), str(file["sha256"]))
            for file in fields["files"]
        )
        config = fields["config"]
        manifest = Manifest(_digest(files, config), files, config)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsMismatch(f"{path} is not a readable manifest: {error}") from error
    if fields.get("format") != FORMAT_VERSION:
        raise WeightsMismatch(f"{path} has format {fields.get('format')!r}, expected {FORMAT_VERSION}")
    if raw != _canonical(manifest.as_dict()):
        raise WeightsMismatch(f"{path} was changed: its digest should be {manifest.digest}")
    # In a store folder, consistent files of another model are as wrong as a flipped bit.
    if _is_digest(folder.name) and folder.name != manifest.digest:
        raise WeightsMismatch(f"{folder} holds the weights {manifest.digest}")
    return manifest


def manifest_verify(folder: Path) -> Manifest:
    """Hash every file and compare. Raises WeightsMismatch on any difference, added files included."""
    manifest = manifest_load(folder)
    try:
        found = manifest_build(folder)
    except OSError as error:
        raise WeightsMismatch(f"{folder} cannot be read: {error}") from error
    if found == manifest:
        return manifest
    stated = {file.name: file for file in manifest.files}
    actual = {file.name: file for file in found.files}
    for name in sorted(stated.keys() | actual.keys()):
        if stated.get(name) != actual.get(name):
            state = "is missing" if name not in actual else "differs" if name in stated else "is not listed"
            raise WeightsMismatch(f"{folder / name} {state}")
    raise WeightsMismatch(f"{folder / 'config.json'} differs from the manifest's config")


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_digest(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _config_read(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsMismatch(f"{path} is not readable JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsMismatch(f"{path} is not a JSON object")
    return config


def _digest(files: tuple[ManifestFile, ...], config: Mapping[str, Any]) -> str:
    content = {"config": dict(config), "files": {file.name: file.sha256 for file in files}}
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
