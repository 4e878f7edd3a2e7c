"""Whose prompt goes on next inside a step."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.flow import Flow
from policy.step_turn import PAUSE_MS, SHORT_TOKENS, Turn, may_overtake


@pytest.mark.parametrize(
    ("left_tokens", "left_out_ms", "is_over", "overtakes"),
    [
        (SHORT_TOKENS, 0, False, True),  # it ends within a step or two
        (SHORT_TOKENS + 1, 0, False, False),
        (SHORT_TOKENS, 0, True, False),  # cutting prompts into small ones gains nothing
        (8000, PAUSE_MS - 1, False, False),
        (8000, PAUSE_MS, False, True),  # nobody is left out for long
        (8000, PAUSE_MS, True, True),
    ],
)
def test_who_needs_little_or_was_left_out_overtakes(
    left_tokens: int, left_out_ms: float, is_over: bool, overtakes: bool
) -> None:
    assert may_overtake(left_tokens, left_out_ms, is_over=is_over) is overtakes


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9)), min_size=2))
def test_batch_is_last_and_interrupted_streams_are_first_whatever_they_were_given(
    flows: list[tuple[bool, bool, bool, int]],
) -> None:
    turns = sorted(Turn(*fields, Flow(str(n), "interactive")) for n, fields in enumerate(flows))
    assert [turn.is_last for turn in turns] == sorted(turn.is_last for turn in turns)
    for before, after in pairwise(turns):
        if before[:3] == after[:3]:
            assert before.time_us <= after.time_us
        if before.is_last == after.is_last:
            assert before.begins <= after.begins
