"""The text form of API keys: what is made can be read, and nothing else can."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.keys import ALPHABET, LENGTH, PREFIX, key_checksum, key_digest, key_generate, key_parse

KEYS = st.randoms(use_true_random=False).map(key_generate)


@given(KEYS)
def test_a_generated_key_parses(key: str) -> None:
    parsed = key_parse(key)
    assert parsed is not None
    assert len(key) == LENGTH == 54
    assert key.startswith(f"{PREFIX}{parsed.public_id}-")
    assert key.endswith(parsed.last4)
    assert set(key.removeprefix(PREFIX).replace("-", "")) <= set(ALPHABET)


@given(KEYS, st.integers(0, LENGTH - 1), st.characters())
def test_one_wrong_character_is_noticed(key: str, position: int, wrong: str) -> None:
    changed = key[:position] + wrong + key[position + 1 :]
    assert (key_parse(changed) is None) == (changed != key)


@given(KEYS, st.integers(0, LENGTH - 2))
def test_two_swapped_characters_are_noticed(key: str, position: int) -> None:
    swapped = key[:position] + key[position + 1] + key[position] + key[position + 2 :]
    assert (key_parse(swapped) is None) == (swapped != key)


@given(KEYS, st.integers(0, LENGTH - 1))
def test_a_missing_character_is_noticed(key: str, position: int) -> None:
    assert key_parse(key[:position] + key[position + 1 :]) is None


@given(st.text())
def test_any_text_is_refused_without_an_error(text: str) -> None:
    assert key_parse(text) is None
    assert key_parse(PREFIX + text) is None


@given(KEYS, st.sampled_from(["\n", " ", "\x00"]))
def test_no_space_around_a_key(key: str, space: str) -> None:
    assert key_parse(key + space) is None
    assert key_parse(space + key) is None


@given(st.text(alphabet=ALPHABET, max_size=60))
def test_the_checksum_always_has_six_characters(body: str) -> None:
    checksum = key_checksum(body)
    assert len(checksum) == 6
    assert set(checksum) <= set(ALPHABET)


def test_digits_of_other_scripts_are_no_base62() -> None:
    key = key_generate(Random(1))
    assert key_parse(key.replace(key[8], "\u0661", 1)) is None


def test_keys_do_not_repeat() -> None:
    keys = [key_generate() for _ in range(1000)]
    assert len({key_parse(key).public_id for key in keys if key_parse(key)}) == 1000  # type: ignore[union-attr]


def test_the_digest_depends_on_key_and_pepper() -> None:
    one, other = key_generate(Random(1)), key_generate(Random(2))
    peppers = bytes(32), bytes([1]) * 32
    digests = {key_digest(pepper, key) for pepper in peppers for key in (one, other)}
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {32}


def test_a_short_pepper_is_refused() -> None:
    with pytest.raises(ValueError, match="pepper"):
        key_digest(b"short", key_generate())
