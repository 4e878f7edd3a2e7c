"""When a server that keeps failing is asked no more, and when it is tried again."""

from hypothesis import given
from hypothesis import strategies as st

from policy.circuit_breaker import BreakerSettings, CircuitBreaker

SETTINGS = BreakerSettings(failures=3, first_pause_ms=1_000, longest_pause_ms=4_000)


def test_it_opens_after_failures_in_a_row_and_only_then() -> None:
    breaker = CircuitBreaker(SETTINGS)
    assert [breaker.failed(0), breaker.failed(0)] == [False, False]
    breaker.succeeded()
    assert [breaker.failed(1), breaker.failed(2), breaker.failed(3)] == [False, False, True]
    assert not breaker.is_closed
    assert breaker.probe_in_ms(3) == 1_000
    assert not breaker.failed(4)  # it is open already


def test_each_probe_that_fails_doubles_the_pause_up_to_a_bound() -> None:
    breaker, now_ms, pauses = CircuitBreaker(SETTINGS), 0.0, []
    breaker.trip(now_ms)
    for _ in range(5):
        pause_ms = breaker.probe_in_ms(now_ms)
        assert pause_ms is not None
        pauses.append(pause_ms)
        now_ms += pause_ms
        breaker.probed(now_ms, has_answered=False)
    assert pauses == [1_000, 1_000, 2_000, 4_000, 4_000]
    # An answer closes it, and the next time begins with the first pause again
    breaker.probed(now_ms, has_answered=True)
    assert breaker.is_closed
    assert breaker.probe_in_ms(now_ms) is None
    breaker.trip(now_ms)
    assert breaker.probe_in_ms(now_ms) == 1_000


def test_a_late_answer_does_not_close_it() -> None:
    breaker = CircuitBreaker(SETTINGS)
    breaker.trip(0)
    breaker.succeeded()
    assert not breaker.is_closed


def test_a_probe_may_be_due_at_once_and_a_second_trip_changes_nothing() -> None:
    breaker = CircuitBreaker(SETTINGS)
    breaker.trip(10, at_once=True)
    breaker.trip(10)
    assert breaker.probe_in_ms(10) == 0


def test_an_answer_to_a_probe_that_nobody_needs_changes_nothing() -> None:
    breaker = CircuitBreaker(SETTINGS)
    breaker.failed(0)
    breaker.failed(0)
    breaker.probed(0, has_answered=False)
    assert breaker.is_closed
    assert breaker.failed(0)


@given(st.lists(st.sampled_from(["failed", "succeeded", "trip", "answered", "silent"]), max_size=60))
def test_open_means_that_a_probe_is_due_within_the_longest_pause(events: list[str]) -> None:
    breaker = CircuitBreaker(SETTINGS)
    for now_ms, event in enumerate(events):
        match event:
            case "failed":
                breaker.failed(now_ms)
            case "succeeded":
                breaker.succeeded()
            case "trip":
                breaker.trip(now_ms)
            case _:
                breaker.probed(now_ms, has_answered=event == "answered")
        pause_ms = breaker.probe_in_ms(now_ms)
        assert breaker.is_closed == (pause_ms is None)
        assert pause_ms is None or 0 <= pause_ms <= SETTINGS.longest_pause_ms
