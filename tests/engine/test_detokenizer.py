"""Texts come out whole: no half characters, nothing of a stop string, the same however they were split."""

from os.path import commonprefix

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tokenizers import Tokenizer

from gpuworker.engine.detokenizer import (
    MAX_HELD_TOKENS,
    WINDOW_TOKENS,
    Detokenizer,
    IncrementalDecoder,
)
from tests.engine.support import EOS, byte_tokenizer, sentencepiece_tokenizer

BYTES = byte_tokenizer()
PIECES = sentencepiece_tokenizer()
PIECES.add_special_tokens(["</s>"])  # 264
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


@given(ids=st.lists(st.integers(0, 255) | st.sampled_from(list("😀\ufffdé".encode())), max_size=60))
def test_any_bytes_come_back_as_the_tokenizer_decodes_them_at_once(ids: list[int]) -> None:
    decoder = IncrementalDecoder(BYTES, [])
    assert "".join(pushed(decoder, ids)) + decoder.flush() == BYTES.decode(ids)


PROMPTS = [[257], [258], [259], [263], list("é".encode()), list("日日日".encode()), [264, 264, 264, 264]]


@given(prompt=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=8), data=st.data())
def test_leading_spaces_of_words_are_kept(prompt: list[list[int]], data: st.DataObject) -> None:
    # Given a prompt that may end in bytes of characters or in special tokens, if it shows anything
    context = [257, *(token for piece in prompt for token in piece)]
    word = st.sampled_from([[257], [258], [259], [260], [261], [262], [263], [264], list("é😀".encode())])
    ids = [token for piece in data.draw(st.lists(word, max_size=30)) for token in piece]
    # Then every space between words comes out, and whole characters
    decoder = IncrementalDecoder(PIECES, context)
    text = "".join(pushed(decoder, ids)) + decoder.flush()
    assert PIECES.decode(context) + text == PIECES.decode(context + ids)


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


ANY_IDS = st.lists(
    st.integers(0, 255) | st.sampled_from([*range(256, 264), 300, *"👩‍👩\u0301".encode()]), max_size=60
)


@given(prompt=ANY_IDS, ids=ANY_IDS)
def test_prompt_and_output_together_are_what_the_tokenizer_makes_of_all_ids(
    prompt: list[int], ids: list[int]
) -> None:
    # Given any ids: invalid bytes, halves of characters on both sides of the seam, special and unknown ids
    detokenizer = Detokenizer(CUTS, prompt, [], echo=True)
    # Then nothing is lost, doubled or replaced between the prompt's text and the deltas
    text = "".join(pushed(detokenizer, ids)) + detokenizer.flush()
    assert detokenizer.prompt_text + text == CUTS.decode(prompt + ids)


@given(prompt=ANY_IDS, ids=ANY_IDS)
def test_replacements_of_the_prompt_are_not_the_outputs(prompt: list[int], ids: list[int]) -> None:
    detokenizer = Detokenizer(CUTS, prompt, [])
    text = "".join(pushed(detokenizer, ids)) + detokenizer.flush()
    before, all_text = CUTS.decode(prompt), CUTS.decode(prompt + ids)
    assert text == all_text[len(commonprefix([before, all_text])) :]  # noqa: RUF071  texts, not paths


def test_a_character_begun_by_the_prompt_is_shown_when_the_output_completes_it() -> None:
    begin, rest = [97, *"😀".encode()[:2]], list("😀".encode()[2:])
    assert pushed(Detokenizer(BYTES, begin, []), [*rest, 98]) == ["", "😀", "b"]
    assert pushed(Detokenizer(BYTES, begin, []), [98]) == ["b"]
    echoing = Detokenizer(BYTES, begin, [], echo=True)
    assert echoing.prompt_text == "a"
    assert pushed(echoing, [98]) == ["\ufffdb"]


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


@pytest.mark.parametrize("invalid", [1, 14, 15, 16, 17, 40])
def test_a_character_after_any_run_of_invalid_bytes_is_whole(invalid: int) -> None:
    decoder = IncrementalDecoder(BYTES, [97])
    text = "".join(pushed(decoder, [0x80] * invalid + list("😀b".encode())))
    assert text == "\ufffd" * invalid + "😀b"


def test_any_number_of_special_tokens_leaves_the_context_as_it_was() -> None:
    decoder = IncrementalDecoder(PIECES, [257])
    assert pushed(decoder, [264] * 40 + [258]) == [""] * 40 + [" cat"]
    assert pushed(IncrementalDecoder(PIECES, [257] + [264] * 8), [258]) == [" cat"]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
def test_half_a_character_at_the_end_is_flushed_as_a_replacement(tokenizer: Tokenizer) -> None:
    decoder = Detokenizer(tokenizer, [], [])
    assert pushed(decoder, list("😀".encode())[:2]) == ["", ""]
    assert set(decoder.flush()) == {"\ufffd"}


def test_special_ids_are_never_shown() -> None:
    decoder = IncrementalDecoder(BYTES, [EOS])
    assert pushed(decoder, [ord("a"), EOS, ord("b"), EOS]) == ["a", "", "b", ""]


def test_after_a_match_nothing_more_is_shown() -> None:
    detokenizer = Detokenizer(BYTES, [], ["b"])
    assert pushed(detokenizer, list(b"abc")) == ["a", "", ""]
    assert detokenizer.stopped_by
    assert detokenizer.flush() == ""


def test_stop_strings_are_not_looked_for_while_the_row_may_not_stop() -> None:
    # Given a stop string that appears twice
    detokenizer = Detokenizer(BYTES, [], ["ab"])
    # When the row may not stop before its third token
    shown = [detokenizer.push(token, may_stop=at >= 2) for at, token in enumerate(b"ababab")]
    # Then the first is shown, at once, and the second stops
    assert shown == ["a", "b", "", "", "", ""]
    assert detokenizer.stopped_by


def test_a_stop_string_begun_before_the_row_may_stop_is_not_found() -> None:
    detokenizer = Detokenizer(BYTES, [], ["ab"])
    assert [detokenizer.push(ord("a"), may_stop=False), detokenizer.push(ord("b"))] == ["a", "b"]
    assert not detokenizer.stopped_by


def test_stop_strings_are_not_looked_for_in_an_echoed_prompt() -> None:
    detokenizer = Detokenizer(BYTES, list(b"xaby a"), ["ab"], echo=True)
    assert detokenizer.prompt_text == "xaby a"
    assert pushed(detokenizer, list(b"bab")) == ["b", "", ""]


@given(
    text=st.text(st.sampled_from("ab😀é\u200d👩"), max_size=30),
    stops=st.lists(st.text(st.sampled_from("ab😀é\u200d👩"), min_size=1, max_size=4), max_size=3),
)
def test_shown_text_is_the_decoded_text_cut_at_the_first_stop(text: str, stops: list[str]) -> None:
    detokenizer = Detokenizer(BYTES, [97], stops)
    shown = "".join(pushed(detokenizer, list(text.encode()))) + detokenizer.flush()
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected = text
    if ends:
        found = [stop for stop in stops if text[: ends[0]].endswith(stop)]
        expected = text[: ends[0] - max(map(len, found))]
    assert shown == expected
    assert bool(detokenizer.stopped_by) == bool(ends)
