"""Stop strings are found however the text was split, at a cost that does not depend on their length."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpuworker.engine.stop_matcher import MAX_STOP_CHARACTERS, MAX_STOPS, StopMatcher, stop_problem

LETTERS = st.text(st.sampled_from("ab"), max_size=40)
STOPS = st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=12), min_size=1, max_size=5)


def cut_at_stop(text: str, stops: list[str]) -> tuple[str, str]:
    """The rule, read literally: what is shown, and the stop string that matched."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@st.composite
def near_misses(draw: st.DrawFn, stops: list[str]) -> str:
    """A text full of beginnings of the stop strings."""
    pieces = draw(st.lists(st.tuples(st.sampled_from(stops), st.integers(1, 12)), max_size=6))
    return "".join(stop[:size] for stop, size in pieces)


@settings(max_examples=400)
@given(stops=STOPS, data=st.data())
def test_stop_strings_do_not_depend_on_how_the_text_was_split(stops: list[str], data: st.DataObject) -> None:
    # Given the end of the earliest completed stop string, and the longest one that ends there
    text = data.draw(LETTERS | near_misses(stops))
    expected, stopped_by = cut_at_stop(text, stops)
    # When the text arrives in any pieces
    matcher = StopMatcher(stops)
    shown, at = "", 0
    while at < len(text) and not matcher.matched:
        piece = text[at : at + data.draw(st.integers(0, 6))]
        shown += matcher.feed(piece)
        at += len(piece)
        # Then what is shown is never ahead, and no more is held back than could still become a stop string
        assert expected.startswith(shown)
        held = text[len(shown) : at]
        assert matcher.matched or not held or any(stop.startswith(held) for stop in stops)
        assert matcher.matched or not any(
            stop.startswith(text[begin:at]) for stop in stops for begin in range(len(shown))
        )
    shown += matcher.flush()
    assert shown == expected
    assert matcher.matched == stopped_by


def test_of_stop_strings_within_each_other_the_first_completed_wins() -> None:
    assert StopMatcher(["ello wo", "ll"]).feed("hello world") == "he"
    assert StopMatcher(["hello", "llo"]).feed("hello") == ""
    assert StopMatcher(["llo", "hello"]).feed("hello") == ""
    assert StopMatcher(["llo", "hello"]).feed("jello") == "je"


@pytest.mark.parametrize("text", ["aabaaabaaac", "abaababaabac", "aabaabaaab" * 3])
def test_a_beginning_within_a_beginning_is_remembered(text: str) -> None:
    for size in range(1, len(text) + 1):
        for at in range(size):
            stop = text[at:size]
            expected = text[: text.index(stop)]
            assert "".join(map(StopMatcher([stop]).feed, text)) == expected


def test_no_stop_strings_hold_nothing_back() -> None:
    assert StopMatcher([]).feed("abc") == "abc"
    assert StopMatcher([""]).feed("abc") == "abc"


def test_after_a_match_nothing_more_is_shown() -> None:
    matcher = StopMatcher(["b"])
    assert [matcher.feed("ab"), matcher.feed("c"), matcher.flush()] == ["a", "", ""]


def test_text_after_a_flush_is_searched_by_itself() -> None:
    matcher = StopMatcher(["abc"])
    assert matcher.feed("xab") == "x"
    assert matcher.flush() == "ab"
    assert matcher.feed("c") == "c"
    assert not matcher.matched
    assert matcher.feed("abc") == ""
    assert matcher.matched


LONG = "a" * (MAX_STOP_CHARACTERS - 1) + "b"


class CountingText(str):
    """Counts the comparisons of single characters that an automaton makes."""

    looks = 0

    def __getitem__(self, index: object) -> str:
        if isinstance(index, int):
            CountingText.looks += 1
        return super().__getitem__(index)  # type: ignore[index]


@pytest.mark.parametrize("text", ["a" * 12_000, ("a" * 5_000 + "c") * 2, "ab" * 5_000])
def test_the_work_for_a_text_does_not_grow_with_the_length_of_the_stop_string(text: str) -> None:
    # Given a stop string of the greatest length whose every beginning also ends it
    matcher = StopMatcher([CountingText(LONG)])
    CountingText.looks = 0
    # When a text that nearly matches all the time arrives character by character
    shown = "".join(map(matcher.feed, text)) + matcher.flush()
    # Then each character cost a few comparisons
    assert shown == text
    assert CountingText.looks < 8 * len(text)


def test_a_long_stop_string_is_held_back_whole_and_found() -> None:
    matcher = StopMatcher([LONG, "x"])
    assert matcher.feed("a" * 12_000) == "a" * 2_001
    assert matcher.feed("b") == ""
    assert matcher.matched


def test_more_stop_strings_than_allowed_are_named() -> None:
    assert stop_problem([]) == ""
    assert stop_problem(["x" * MAX_STOP_CHARACTERS] * MAX_STOPS) == ""
    assert stop_problem(["x"] * (MAX_STOPS + 1)) == "17 stop strings, 16 are allowed"
    assert stop_problem(["x" * 10_001]) == "a stop string has 10001 characters, 10000 are allowed"


@given(stop=st.text(st.sampled_from("ab"), min_size=1, max_size=12), text=LETTERS)
def test_held_text_only_shrinks_when_it_stops_being_a_beginning(stop: str, text: str) -> None:
    matcher = StopMatcher([stop])
    shown = [""]
    for char in text:
        shown.append(shown[-1] + matcher.feed(char))
    assert all(later.startswith(earlier) for earlier, later in pairwise(shown))
