"""No byte of a weights folder can change without the digest noticing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuworker.manifest import (
    WeightsMismatch,
    manifest_build,
    manifest_load,
    manifest_verify,
    manifest_write,
)


@pytest.fixture
def weights(tiny_folder: Path) -> Path:
    manifest = manifest_build(tiny_folder)
    manifest_write(tiny_folder, manifest)
    return tiny_folder.rename(tiny_folder.parent / manifest.digest)


def test_untouched_folder_verifies_and_names_itself(weights: Path) -> None:
    manifest = manifest_verify(weights)
    assert manifest == manifest_load(weights)
    assert manifest.digest == weights.name
    assert manifest.max_context_tokens == 256
    assert {file.name for file in manifest.files} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_in_any_file_is_a_mismatch(data: st.DataObject, weights: Path) -> None:
    path = data.draw(st.sampled_from(sorted(weights.iterdir())))
    original = path.read_bytes()
    changed = bytearray(original)
    changed[data.draw(st.integers(0, len(original) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    try:
        with pytest.raises(WeightsMismatch):
            manifest_verify(weights)
    finally:
        path.write_bytes(original)
    manifest_verify(weights)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: text + "\n",
        lambda text: json.dumps(json.loads(text), indent=1),
        lambda text: json.dumps(json.loads(text) | {"note": "harmless"}, separators=(",", ":")),
        lambda text: text.replace('{"config"', '{"format":1,"config"', 1),
    ],
)
def test_manifest_in_any_other_form_is_a_mismatch(weights: Path, rewrite: Callable[[str], str]) -> None:
    path = weights / "manifest.json"
    path.write_text(rewrite(path.read_text()))
    with pytest.raises(WeightsMismatch, match="was changed"):
        manifest_load(weights)


def test_each_file_missing_is_a_mismatch(weights: Path) -> None:
    for path in sorted(weights.iterdir()):
        aside = path.rename(weights.parent / "aside")
        with pytest.raises(WeightsMismatch):
            manifest_verify(weights)
        aside.rename(path)


def test_added_file_or_link_is_a_mismatch(weights: Path) -> None:
    (weights / "extra.safetensors").write_bytes(b"")
    with pytest.raises(WeightsMismatch, match=r"extra\.safetensors is not listed"):
        manifest_verify(weights)
    (weights / "extra.safetensors").unlink()
    (weights / "link").symlink_to(weights / "config.json")
    with pytest.raises(WeightsMismatch, match="link is not a plain file"):
        manifest_verify(weights)


def test_consistent_folder_of_other_weights_under_this_name_is_a_mismatch(weights: Path) -> None:
    with (weights / "model.safetensors").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\0\0")
    other = manifest_build(weights)
    manifest_write(weights, other)
    with pytest.raises(WeightsMismatch, match=other.digest):
        manifest_verify(weights)
    renamed = weights.rename(weights.parent / other.digest)
    assert manifest_verify(renamed) == other


def test_folder_that_is_none_is_a_mismatch(tmp_path: Path) -> None:
    with pytest.raises(WeightsMismatch):
        manifest_verify(tmp_path / "absent")
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(WeightsMismatch):
        manifest_verify(tmp_path)
