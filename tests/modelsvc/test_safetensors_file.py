"""A safetensors header is believed only when it describes its file exactly."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from modelsvc.import_errors import ModelRejected
from modelsvc.safetensors_file import TensorInfo, header_read, safetensors_write


def file_write(path: Path, header: Any, data: bytes, header_bytes: int | None = None) -> Path:
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if header_bytes is None else header_bytes) + raw + data)
    return path


def entry(begin: int, end: int, *, dtype: str = "F32", shape: Any = None) -> dict[str, Any]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_written_file_is_what_the_library_reads(tmp_path: Path) -> None:
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(3, dtype=np.float32)}
    infos = [TensorInfo(name, "F32", array.shape) for name, array in arrays.items()]
    done: list[int] = []
    path = tmp_path / "model.safetensors"
    safetensors_write(path, infos, lambda info: arrays[info.name].tobytes(), done.append)
    read = load_file(path)
    assert read.keys() == arrays.keys()
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)
    assert header_read(path) == {info.name: info for info in infos}
    assert done == [24, 36]


def test_file_of_the_library_is_accepted(tmp_path: Path) -> None:
    save_file(
        {"x": np.zeros((2, 2), np.float16), "empty": np.zeros((0, 4), np.int64)},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    assert {info.dtype for info in header_read(tmp_path / "model.safetensors").values()} == {"F16", "I64"}


@pytest.mark.parametrize(
    ("header", "data", "header_bytes"),
    [
        ({"x": entry(0, 8)}, b"1234567", None),
        ({"x": entry(0, 8)}, b"123456789", None),
        ({"x": entry(4, 12)}, bytes(12), None),
        ({"x": entry(0, 8), "y": entry(4, 12)}, bytes(12), None),
        ({"x": entry(0, 4), "y": entry(8, 12)}, bytes(12), None),
        ({"x": entry(0, 8, shape=[3])}, bytes(8), None),
        ({"x": entry(0, 8, shape=[-2])}, bytes(8), None),
        ({"x": entry(0, 8, shape=[-1, -2])}, bytes(8), None),
        ({"x": entry(0, 8, shape=[2.0])}, bytes(8), None),
        ({"x": entry(0, 8, shape=2)}, bytes(8), None),
        ({"x": entry(0, 8, dtype="PICKLE")}, bytes(8), None),
        ({"x": {"dtype": "F32", "shape": [2]}}, bytes(8), None),
        ({"x": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, bytes(8), None),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}}, bytes(8), None),
        ({"x": {"dtype": "F32", "shape": [0], "data_offsets": [2**70, 2**70]}}, b"", None),
        (["x"], b"", None),
        ({"x": 1}, b"", None),
        ({"x": entry(0, 8)}, bytes(8), 2**63),
        ({"x": entry(0, 8)}, bytes(8), 100_000_001),
        ({"x": entry(0, 8)}, bytes(8), 10),
    ],
)
def test_header_that_does_not_describe_the_file_is_refused(
    tmp_path: Path, header: Any, data: bytes, header_bytes: int | None
) -> None:
    path = file_write(tmp_path / "model.safetensors", header, data, header_bytes)
    with pytest.raises(ModelRejected):
        header_read(path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_what_we_accept_the_library_accepts_too(tmp_path: Path, data: st.DataObject) -> None:
    """Damage a good file anywhere: either refused here, or still readable by the reference implementation."""
    path = tmp_path / "model.safetensors"
    save_file({"x": np.zeros((2, 3), np.float32), "y": np.ones(2, np.int8)}, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        header_read(path)
    except ModelRejected:
        return
    try:
        load_file(path)
    except SafetensorError as error:
        pytest.fail(f"accepted, but the library says {error}")
