"""The simulation's clock and its log."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.engine import Engine, EventLog


@given(st.lists(st.integers(0, 50), max_size=60))
def test_events_happen_in_order_of_time_then_of_scheduling(times: list[int]) -> None:
    engine = Engine()
    happened: list[Any] = []
    for number, time_us in enumerate(times):
        engine.at(time_us, lambda number=number: happened.append((engine.now_us, number)))
    engine.run(100)
    assert happened == sorted((time_us, number) for number, time_us in enumerate(times))
    assert engine.is_idle


def test_what_an_event_schedules_for_the_same_moment_happens_after_what_was_there() -> None:
    engine = Engine()
    happened: list[Any] = []
    engine.at(5, lambda: engine.at(5, happened.append, "later"))
    engine.at(5, happened.append, "there")
    engine.run(5)
    assert happened == ["there", "later"]


def test_a_run_ends_at_its_time_and_goes_on_from_there() -> None:
    engine = Engine()
    happened: list[Any] = []
    engine.at(10, happened.append, "in time")
    engine.at(11, happened.append, "later")
    engine.run(10)
    assert (happened, engine.now_us) == (["in time"], 10)
    engine.run(20)
    assert (happened, engine.now_us) == (["in time", "later"], 20)


def test_the_past_is_over() -> None:
    engine = Engine()
    engine.run(10)
    with pytest.raises(ValueError, match="9 µs is over"):
        engine.at(9, print)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(0, 255), st.integers(0, 1 << 60)), max_size=20)
)
def test_equal_histories_have_equal_hashes_and_others_do_not(events: list[tuple[int, int, int]]) -> None:
    def sha256(history: list[tuple[int, int, int]]) -> str:
        log = EventLog()
        for event in history:
            log.add(*event)
        return log.sha256

    assert sha256(events) == sha256(events)
    for at, (time_us, kind, subject) in enumerate(events):
        assert sha256([*events[:at], (time_us, kind, subject + 1), *events[at + 1 :]]) != sha256(events)


def test_a_log_may_be_asked_for_its_hash_before_its_end() -> None:
    whole, asked = EventLog(), EventLog()
    for log in (whole, asked):
        for number in range(5000):  # more than its buffer holds
            log.add(number, 1, number)
            if log is asked and number == 2500:
                assert log.sha256
    assert whole.sha256 == asked.sha256
