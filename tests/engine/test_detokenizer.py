"""Texts come out whole: no half characters, nothing of a stop string, the same however they were split."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tokenizers import Tokenizer

from gpuworker.engine.detokenizer import (
    MAX_HELD_TOKENS,
    WINDOW_TOKENS,
    Detokenizer,
    IncrementalDecoder,
    StopMatcher,
)
from tests.engine.support import EOS, byte_tokenizer, sentencepiece_tokenizer

BYTES = byte_tokenizer()
PIECES = sentencepiece_tokenizer()
SOME_TEXT = st.text(st.sampled_from("abé日本😀👩‍👩 \n"), max_size=40)


def pushed(decoder: IncrementalDecoder | Detokenizer, ids: list[int]) -> list[str]:
    return [decoder.push(token) for token in ids]


@given(text=SOME_TEXT, prompt=SOME_TEXT)
def test_any_text_comes_back_character_by_character(text: str, prompt: str) -> None:
    decoder = IncrementalDecoder(BYTES, list(prompt.encode()))
    deltas = pushed(decoder, list(text.encode()))
    assert "".join(deltas) == text
    assert [delta for delta in deltas if delta] == list(text)
    assert decoder.flush() == ""


@given(ids=st.lists(st.integers(0, 255), max_size=MAX_HELD_TOKENS))
def test_any_bytes_come_back_as_the_tokenizer_decodes_them_at_once(ids: list[int]) -> None:
    decoder = IncrementalDecoder(BYTES, [])
    assert "".join(pushed(decoder, ids)) + decoder.flush() == BYTES.decode(ids)


@given(prompt=st.lists(st.sampled_from([257, 258, 259, 263]), min_size=1), data=st.data())
def test_leading_spaces_of_words_are_kept(prompt: list[int], data: st.DataObject) -> None:
    word = st.sampled_from([[257], [258], [259], [260], [261], [262], [263], list("é😀".encode())])
    ids = [token for piece in data.draw(st.lists(word, max_size=30)) for token in piece]
    decoder = IncrementalDecoder(PIECES, prompt)
    text = "".join(pushed(decoder, ids)) + decoder.flush()
    assert PIECES.decode(prompt) + text == PIECES.decode(prompt + ids)


# Tokens of several bytes that end within a character; some complete the one before.
CUT = [
    b" \xe2",
    b"\x82\xac \xe2",
    b"\xa9x\xf0\x9f",
    b"\x98\x80a\xc3",
    b"\x80\x80\xef\xbf\xbdb\xe6\x97",
    b"\xac\xc3",
]
CUTS = byte_tokenizer(*CUT)
# Each brings a whole character, so that no run of invalid bytes is long enough to be let through.
AMONG_CUTS = [[256], [257], [258], [259], [260], [0xE2, 0x82, 257], [0x80, 258], [0xF0, 0x9F, 259]]
AMONG_CUTS += [[0xE2, 0x82, 261], [0x80] * 10 + [256], [97, 0xE6, 0x97], [97, 0xA5], [97]]


@given(prompt=SOME_TEXT, pieces=st.lists(st.sampled_from(AMONG_CUTS), max_size=60))
def test_tokens_that_end_within_characters_come_back_whole(prompt: str, pieces: list[list[int]]) -> None:
    ids = [token for piece in pieces for token in piece]
    decoder = IncrementalDecoder(CUTS, list(prompt.encode()))
    text = "".join(pushed(decoder, ids)) + decoder.flush()
    assert prompt + text == CUTS.decode([*prompt.encode(), *ids])


@pytest.mark.parametrize("piece", AMONG_CUTS)
def test_the_window_stays_short_when_the_text_is_never_complete(piece: list[int]) -> None:
    decoder = IncrementalDecoder(CUTS, [1, 2, 3])
    for token in piece * 100:
        decoder.push(token)
        assert len(decoder._window) <= WINDOW_TOKENS + MAX_HELD_TOKENS


def test_endless_invalid_bytes_are_let_through_in_the_end() -> None:
    decoder = IncrementalDecoder(BYTES, [])
    deltas = pushed(decoder, [0x80] * 100)
    assert len("".join(deltas)) > 100 - MAX_HELD_TOKENS - 2
    assert decoder.push(ord("a")).endswith("a")


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
def test_half_a_character_at_the_end_is_flushed_as_a_replacement(tokenizer: Tokenizer) -> None:
    decoder = Detokenizer(tokenizer, [], [])
    assert pushed(decoder, list("😀".encode())[:2]) == ["", ""]
    assert set(decoder.flush()) == {"\ufffd"}


def test_special_ids_are_never_shown() -> None:
    decoder = IncrementalDecoder(BYTES, [EOS])
    assert pushed(decoder, [ord("a"), EOS, ord("b"), EOS]) == ["a", "", "b", ""]


LETTERS = st.text(st.sampled_from("ab"), max_size=24)
STOPS = st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=5), min_size=1, max_size=4)


@given(text=LETTERS, stops=STOPS, data=st.data())
def test_stop_strings_do_not_depend_on_how_the_text_was_split(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    # Given the end of the earliest completed stop string, and the longest one that ends there
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected = text
    if ends:
        longest = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        expected = text[: ends[0] - len(longest)]
    # When the text arrives in any pieces
    matcher = StopMatcher(stops)
    shown = ""
    at = 0
    while at < len(text) and not matcher.matched:
        size = data.draw(st.integers(1, 6))
        shown += matcher.feed(text[at : at + size])
        at += size
        # Then what is shown is never ahead, and what is held back could still become a stop string
        assert expected.startswith(shown)
        held = text[len(shown) : at]
        assert matcher.matched or not held or any(stop.startswith(held) for stop in stops)
    shown += matcher.flush()
    assert shown == expected
    assert matcher.matched == bool(ends)


def test_no_stop_strings_hold_nothing_back() -> None:
    assert StopMatcher([]).feed("abc") == "abc"
    assert StopMatcher([""]).feed("abc") == "abc"


def test_after_a_match_nothing_more_is_shown() -> None:
    detokenizer = Detokenizer(BYTES, [], ["b"])
    assert pushed(detokenizer, list(b"abc")) == ["a", "", ""]
    assert detokenizer.stopped
    assert detokenizer.flush() == ""
