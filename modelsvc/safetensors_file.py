"""Reading and checking the header of a safetensors file, and writing one tensor after the other.

The format: 8 bytes little-endian header length, a JSON object (name to dtype, shape, data_offsets), the data.
Nothing in it is ever executed. The header is still checked before anybody maps the file, because its offsets
come from outside. The library's own writer wants all tensors in memory at once; this one does not.
No Django here.
"""

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from modelsvc.import_errors import ModelRejected

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def header_read(path: Path) -> dict[str, TensorInfo]:
    """Raises ModelRejected unless the tensors cover the file's data exactly, without gap or overlap."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ModelRejected(f"{path} is no safetensors file: {file_bytes} bytes")
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
            raise ModelRejected(f"{path} is no safetensors file: header of {header_bytes} bytes")
        raw = file.read(header_bytes)
    try:
        header = json.loads(raw)
        spans = []
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            info = TensorInfo(name, entry["dtype"], tuple(entry["shape"]))
            if info.dtype not in DTYPE_BYTES or not all(type(n) is int and n >= 0 for n in info.shape):
                raise ModelRejected(f"{path}: tensor {name} has dtype {info.dtype}, shape {info.shape}")
            begin, end = entry["data_offsets"]
            if type(begin) is not int or type(end) is not int or end - begin != info.size_bytes:
                raise ModelRejected(f"{path}: tensor {name} has offsets {begin}..{end}, not its size")
            spans.append((begin, end))
            tensors[name] = info
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelRejected(f"{path} has a malformed safetensors header: {error!r}") from error
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise ModelRejected(f"{path}: tensors overlap or leave a gap at byte {position} of the data")
        position = end
    if position != file_bytes - 8 - header_bytes:
        raise ModelRejected(f"{path} is cut short or has bytes after its tensors")
    return tensors


def safetensors_write(
    path: Path,
    tensors: Iterable[TensorInfo],
    data: Callable[[TensorInfo], bytes],
    advance: Callable[[int], object] = lambda done_bytes: None,
) -> None:
    """Asks for one tensor's bytes at a time, in the given order."""
    tensors = tuple(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for info in tensors:
        end = position + info.size_bytes
        header[info.name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # tensors start aligned
    done_bytes = 0
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)))
        file.write(raw)
        for info in tensors:
            content = data(info)
            if len(content) != info.size_bytes:
                raise ValueError(f"{info.name}: {len(content)} bytes for {info}")
            file.write(content)
            done_bytes += info.size_bytes
            advance(done_bytes)
