"""Weights from safetensors files in the Hugging Face layout. Never pickle.

What the headers say is checked before any tensor is read: what is missing, mis-shaped, quantised, left over
or stated twice is named. `Weights` then hands out one tensor after the other, and looks for broken values.
"""

from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpuworker.engine.weight_files import INDEX_NAME, BadWeights, some, weight_files
from gpuworker.families.config import ModelConfig
from gpuworker.families.shapes import WEIGHT_DTYPES, names_compare, weight_shapes

__all__ = ["BadWeights", "TensorSource", "Weights"]


class TensorSource(Protocol):
    """What a model takes its tensors from: a folder, or a rank's slices of one."""

    def take(self, name: str) -> Tensor: ...


class Weights:
    """The tensors of one folder, converted to one dtype as they are taken."""

    def __init__(self, folder: Path, config: ModelConfig, dtype: torch.dtype) -> None:
        """Raises BadWeights."""
        self._dtype = dtype
        self._shapes = weight_shapes(config)
        self._handles: dict[Path, Any] = {}
        self._files = self._open(folder)
        missing, extra = names_compare(config, self._files)
        if missing:
            raise BadWeights(f"{folder} lacks {some(missing)}")
        if extra:
            raise BadWeights(f"{folder} holds tensors the engine would not use: {some(extra)}")
        for name, shape in self._shapes.items():
            self._check_header(name, shape)

    def take(self, name: str) -> Tensor:
        """Raises BadWeights."""
        path = self._files[name]
        try:
            tensor: Tensor = self._handles[path].get_tensor(name).to(self._dtype)
        except (SafetensorError, OSError) as error:
            raise BadWeights(f"{path} cannot be read: {error}") from error
        # NaN and infinity survive a sum. 10 to 23 ms for the 135M values of the demo model, where looking at
        # each takes 160 to 780.
        if not bool(torch.isfinite(tensor.sum())):
            raise BadWeights(f"{path}: {name} holds values that are not finite in {self._dtype}")
        return tensor

    def _open(self, folder: Path) -> dict[str, Path]:
        """The file of each tensor."""
        paths, weight_map = weight_files(folder)
        found: dict[str, Path] = {}
        for path in paths:
            try:
                self._handles[path] = handle = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise BadWeights(f"{path} cannot be read: {error}") from error
            names = set(handle.keys())  # type: ignore[no-untyped-call]
            if twice := sorted(names & found.keys()):
                raise BadWeights(f"{path} and {found[twice[0]]} both hold {some(twice)}")
            found |= dict.fromkeys(names, path)
        actual = {name: path.name for name, path in found.items()}
        stated = actual if weight_map is None else weight_map
        if wrong := sorted({name for name, _ in stated.items() ^ actual.items()}):
            raise BadWeights(f"{folder / INDEX_NAME} does not say which file holds {some(wrong)}")
        return found

    def _check_header(self, name: str, expected: tuple[int, ...]) -> None:
        path = self._files[name]
        header = self._handles[path].get_slice(name)
        shape, dtype = tuple(header.get_shape()), header.get_dtype()
        if shape != expected:
            raise BadWeights(f"{path}: {name} has shape {shape}, the config asks for {expected}")
        if dtype not in WEIGHT_DTYPES:
            raise BadWeights(f"{path}: {name} has dtype {dtype}: quantised weights are not supported")
