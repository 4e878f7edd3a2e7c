"""A tokenizer or end-of-sequence ids that do not go with the model are refused, with the file's name."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from gpuworker.backends.base import BackendError
from gpuworker.backends.model_folder import eos_ids_load, tokenizer_check
from gpuworker.manifest import Manifest
from tests.engine.support import EOS, byte_tokenizer, tokenizer_file

ENTRIES = EOS + 1


def manifest(**config: Any) -> Manifest:
    return Manifest("digest", (), config)


def generation_write(folder: Path, content: str) -> None:
    (folder / "generation_config.json").write_text(content)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, None, set()),
        ({"eos_token_id": 2}, None, {2}),
        ({"eos_token_id": [2, 0]}, None, {0, 2}),
        ({"eos_token_id": 2}, {}, {2}),
        ({"eos_token_id": 2}, {"eos_token_id": [5, 6]}, {5, 6}),
        ({"eos_token_id": 2}, {"eos_token_id": None}, set()),
    ],
)
def test_generation_config_overrides_the_model_config(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, expected: set[int]
) -> None:
    if generation is not None:
        generation_write(tmp_path, json.dumps(generation))
    assert eos_ids_load(tmp_path, manifest(**config)) == expected


@pytest.mark.parametrize("value", ["2", -1, True, 2.0, [2, None], [[2]], {"id": 2}])
def test_ends_that_are_no_ids_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(BackendError, match=r"/config\.json: eos_token_id"):
        eos_ids_load(tmp_path, manifest(eos_token_id=value))
    generation_write(tmp_path, json.dumps({"eos_token_id": value}))
    with pytest.raises(BackendError, match=r"generation_config\.json: eos_token_id"):
        eos_ids_load(tmp_path, manifest(eos_token_id=2))


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000])
def test_a_broken_generation_config_is_refused(tmp_path: Path, content: str) -> None:
    generation_write(tmp_path, content)
    with pytest.raises(BackendError, match=r"generation_config\.json is not"):
        eos_ids_load(tmp_path, manifest(eos_token_id=2))


@pytest.mark.parametrize("entries", [ENTRIES, ENTRIES + 63])
def test_a_tokenizer_goes_with_its_model_and_a_padded_one(tmp_path: Path, entries: int) -> None:
    tokenizer_file(tmp_path)
    tokenizer_check(tmp_path, entries, frozenset({EOS}))


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    tokenizer_file(tmp_path)
    with pytest.raises(BackendError, match=r"tokenizer\.json has ids up to 256, .* has 256 entries"):
        tokenizer_check(tmp_path, EOS, frozenset())


def test_a_template_with_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 999)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BackendError, match="ids up to 999"):
        tokenizer_check(tmp_path, ENTRIES, frozenset({EOS}))


def test_an_end_the_tokenizer_does_not_know_is_refused(tmp_path: Path) -> None:
    """Such as that of another model, whose vocabulary is larger; or one in the padding."""
    tokenizer_file(tmp_path)
    with pytest.raises(BackendError, match=r"tokenizer\.json does not know .*\[300, 128009\]"):
        tokenizer_check(tmp_path, 512, frozenset({EOS, 300, 128009}))


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff", b"[" * 100_000, None])
def test_a_tokenizer_that_cannot_be_parsed_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BackendError, match=r"tokenizer\.json cannot be read"):
        tokenizer_check(tmp_path, ENTRIES, frozenset())


def test_an_empty_tokenizer_is_refused(tmp_path: Path) -> None:
    Tokenizer.from_str('{"model": {"type": "BPE", "vocab": {}, "merges": []}}').save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(BackendError, match=r"tokenizer\.json has no tokens"):
        tokenizer_check(tmp_path, ENTRIES, frozenset())
