"""A store that is down is noticed once, served around for a minute, then tightly; every change is told."""

from policy.store_state import FAILING_MS, FAILURES, OPEN_MS, State, StateChange, StoreState


def failed(store: StoreState, now_ms: int) -> StateChange | None:
    """A call that was asked and failed then."""
    return store.failed(now_ms, now_ms)


def down(now_ms: int = 0) -> StoreState:
    store = StoreState()
    changes = [failed(store, now_ms) for _ in range(FAILURES)]
    assert changes[:-1] == [None] * (FAILURES - 1)
    assert changes[-1] == StateChange(State.OK, State.OPEN, now_ms, 0)
    return store


def test_one_failure_is_served_around_but_is_no_outage() -> None:
    store = StoreState()
    assert not store.is_failing
    assert failed(store, 0) is None
    assert (store.state, store.is_failing) == (State.OK, True)
    assert store.answered(1, 1) is None
    assert not store.is_failing


def test_five_in_a_row_are_an_outage() -> None:
    assert down().state is State.OPEN


def test_an_answer_between_them_begins_the_count_anew() -> None:
    store = StoreState()
    for now_ms in range(0, 100, 10):
        failed(store, now_ms)
        store.answered(now_ms + 5, now_ms + 5)
    assert store.state is State.OK


def test_two_are_when_nothing_was_answered_for_a_second() -> None:
    store = StoreState()
    failed(store, 0)
    assert failed(store, FAILING_MS - 1) is None
    assert failed(store, FAILING_MS) == StateChange(State.OK, State.OPEN, FAILING_MS, FAILING_MS)


def test_after_a_minute_it_is_tight_and_refuses_batch() -> None:
    store, over_ms = down(5_000), 5_000 + OPEN_MS
    assert store.tick(over_ms - 1) is None
    assert store.serves("batch")
    assert store.tick(over_ms) == StateChange(State.OPEN, State.TIGHT, over_ms, OPEN_MS)
    assert not store.serves("batch")
    assert store.serves("interactive")
    assert failed(store, 10 * OPEN_MS) is None


def test_a_failure_notices_the_minute_as_well() -> None:
    store = down()
    change = failed(store, OPEN_MS)
    assert change is not None
    assert change.after is State.TIGHT


def test_the_first_answer_ends_it() -> None:
    store = down(1_000)
    store.tick(1_000 + OPEN_MS)
    assert store.answered(100_000, 100_000) == StateChange(State.TIGHT, State.OK, 100_000, 99_000)
    assert store.serves("batch")
    assert store.tick(10**9) is None
    assert failed(store, 100_001) is None


def test_calls_that_were_under_way_together_fail_as_one() -> None:
    # Given a moment's stall, in which many calls were asked
    store = StoreState()
    for asked_ms in range(20):
        assert store.failed(asked_ms, 40 + asked_ms) is None
    assert store.state is State.OK
    # When later ones fail too
    for now_ms in (100, 200, 300):
        assert failed(store, now_ms) is None
    # Then that is an outage
    change = failed(store, 400)
    assert change is not None
    assert change.after is State.OPEN


def test_a_call_that_fails_after_a_later_one_was_answered_says_nothing() -> None:
    store = StoreState()
    store.answered(50, 60)
    assert store.failed(40, 70) is None
    assert not store.is_failing
