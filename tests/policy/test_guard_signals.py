"""The standing queue, the cut-off and the ladder: each rises when it should and falls when it may."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.codel import Codel
from policy.ladder import ENTER, Ladder
from policy.priority_cutoff import (
    HOUR_MS,
    LEVELS,
    OPEN_AFTER_MS,
    SHARE_BUCKETS,
    TENANT_BUCKETS,
    PriorityCutoff,
    priority_level,
    share_bucket,
)

# -- a standing queue --------------------------------------------------------------------------------------


def test_a_burst_is_no_standing_queue() -> None:
    codel = Codel(50, 500, 0)
    for wait_ms in (400, 300, 200, 49):
        codel.left(wait_ms)
    codel.tick(500, is_empty=False)
    assert not codel.is_overloaded


def test_even_the_least_wait_above_the_target_is() -> None:
    codel = Codel(50, 500, 0)
    codel.left(51)
    codel.left(900)
    codel.tick(499, is_empty=False)
    assert not codel.is_overloaded
    codel.tick(500, is_empty=False)
    assert codel.is_overloaded
    codel.left(50)
    codel.tick(1000, is_empty=False)
    assert not codel.is_overloaded


def test_an_empty_queue_does_not_stand_and_a_silent_interval_says_nothing() -> None:
    codel = Codel(50, 500, 0)
    codel.left(60)
    codel.tick(500, is_empty=False)
    codel.tick(1000, is_empty=False)
    assert codel.is_overloaded
    codel.tick(1500, is_empty=True)
    assert not codel.is_overloaded


# -- the cut-off ------------------------------------------------------------------------------------------


def test_levels_are_by_share_first_then_by_tenant_and_hour() -> None:
    within = [priority_level(f"tenant {n}", 0, 0.0) for n in range(500)]
    beyond = [priority_level(f"tenant {n}", 1, 0.0) for n in range(500)]
    assert max(within) < min(beyond)
    assert len(set(within)) > TENANT_BUCKETS / 2
    assert all(0 <= level < TENANT_BUCKETS for level in within)
    assert within == [priority_level(f"tenant {n}", 0, HOUR_MS - 1.0) for n in range(500)]
    assert within != [priority_level(f"tenant {n}", 0, float(HOUR_MS)) for n in range(500)]


@pytest.mark.parametrize(
    ("demand", "part", "bucket"),
    [(0, 0, 0), (4, 4, 0), (5, 4, 1), (8, 4, 2), (16, 4, 3), (1e9, 4, 7), (1, 0, 7)],
)
def test_buckets_double(demand: float, part: float, bucket: int) -> None:
    assert share_bucket(demand, part) == bucket < SHARE_BUCKETS


def ask(cutoff: PriorityCutoff, levels: list[int]) -> int:
    admitted = 0
    for level in levels:
        gets_in = cutoff.admits(level)
        cutoff.asked(level, admitted=gets_in)
        admitted += gets_in
    return admitted


def test_while_overloaded_five_percent_fewer_get_in_each_second_the_worst_levels_first() -> None:
    cutoff = PriorityCutoff(0)
    levels = list(range(100))
    admitted = [ask(cutoff, levels)]
    for second in range(1, 11):
        cutoff.tick(second * 1000 - 1, is_overloaded=True)
        cutoff.tick(second * 1000, is_overloaded=True)
        admitted.append(ask(cutoff, levels))
    assert admitted[0] == 100
    assert all(int(before * 0.95) == after for before, after in pairwise(admitted))
    assert cutoff.admits(0)
    assert not cutoff.admits(99)


def test_afterwards_one_percent_more_each_second_then_everybody() -> None:
    cutoff = PriorityCutoff(0)
    levels = list(range(1000))
    ask(cutoff, levels)
    cutoff.tick(1000, is_overloaded=True)
    admitted = [ask(cutoff, levels)]
    for second in range(2, 6):
        cutoff.tick(second * 1000, is_overloaded=False)
        admitted.append(ask(cutoff, levels))
    assert admitted == [950, 960, 970, 980, 990]
    cutoff.tick(1000 + OPEN_AFTER_MS, is_overloaded=False)
    assert cutoff.cutoff == LEVELS - 1


def test_one_level_that_alone_is_too_much_still_gets_in_at_last() -> None:
    """Nothing is below it to be let in instead."""
    cutoff = PriorityCutoff(0)
    ask(cutoff, [700] * 10)
    cutoff.tick(1000, is_overloaded=True)
    assert not cutoff.admits(700)
    ask(cutoff, [700] * 10)
    cutoff.tick(1000 + OPEN_AFTER_MS, is_overloaded=False)
    assert cutoff.admits(700)


# -- the ladder -------------------------------------------------------------------------------------------


def test_a_level_is_entered_after_five_seconds_above() -> None:
    ladder = Ladder()
    assert ladder.update(0.31, 3100, 0) is None
    assert ladder.update(0.31, 3100, 4999) is None
    change = ladder.update(0.31, 3100, 5000)
    assert change is not None
    assert (change.at_ms, change.before, change.after, change.pressure, change.wait_ms) == (
        5000,
        0,
        1,
        0.31,
        3100,
    )
    assert ladder.update(0.31, 3100, 6000) is None


def test_a_dip_begins_the_five_seconds_anew() -> None:
    ladder = Ladder()
    ladder.update(0.4, 0, 0)
    ladder.update(0.3, 0, 4000)
    ladder.update(0.4, 0, 4001)
    assert ladder.update(0.4, 0, 8000) is None
    assert ladder.update(0.4, 0, 9001) is not None


def test_great_pressure_goes_to_the_top_at_once() -> None:
    ladder = Ladder()
    ladder.update(1.2, 0, 0)
    change = ladder.update(1.2, 0, 5000)
    assert change is not None
    assert change.after == 5 == len(ENTER)


def test_a_level_is_left_after_sixty_seconds_below_half_of_its_own_threshold() -> None:
    ladder = Ladder()
    ladder.update(0.75, 0, 0)
    ladder.update(0.75, 0, 5000)
    assert ladder.level == 3
    ladder.update(0.3, 0, 6000)  # below half of 0.7, not of 0.5
    assert ladder.update(0.3, 0, 65_999) is None
    assert ladder.update(0.3, 0, 66_000) is not None
    assert ladder.level == 2
    ladder.update(0.3, 0, 1_000_000)
    assert ladder.level == 2
    ladder.update(0.0, 0, 1_000_001)
    change = ladder.update(0.0, 0, 1_060_001)
    assert change is not None
    assert (change.before, change.after) == (2, 0)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(1, 10_000)), max_size=60))
def test_changes_tell_the_whole_story(history: list[tuple[float, float]]) -> None:
    ladder, now_ms, told = Ladder(), 0.0, 0
    for pressure, passed_ms in history:
        now_ms += passed_ms
        before = ladder.level
        change = ladder.update(pressure, 0, now_ms)
        assert (change is not None) == (ladder.level != before)
        if change:
            assert (change.before, change.after) == (told, ladder.level)
            told = change.after
        assert ladder.level == 0 or ladder.level <= len(ENTER)
