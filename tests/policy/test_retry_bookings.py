"""A client that was told to come back finds its place, for a moment, and nobody else does."""

from policy.retry_bookings import KEPT_BEFORE_MS, KEPT_MS, MOST_BOOKINGS, MOST_FLOWS, RetryBookings
from tests.policy.queue_fleet import waiting_make

DUE_MS = 1000 + KEPT_BEFORE_MS


def booked(bookings: RetryBookings, *, prompt: int = 100, due_ms: float = DUE_MS, tenant: str = "a") -> None:
    waiting = waiting_make(tenant=tenant, prompt=prompt)
    waiting.work_us = 10
    bookings.book(waiting, due_ms)


def test_a_place_is_kept_from_the_moment_that_was_told_and_not_for_long() -> None:
    bookings, flow = RetryBookings(), waiting_make().flow
    assert bookings.booked_us(flow, 0) == (0, 0)
    booked(bookings)
    assert bookings.booked_us(flow, 999) == (0, 10)
    assert bookings.booked_us(flow, 1000) == (10, 10)
    assert bookings.booked_us(flow, 1000 + KEPT_BEFORE_MS + KEPT_MS) == (10, 10)
    assert bookings.booked_us(flow, 1001 + KEPT_BEFORE_MS + KEPT_MS) == (0, 0)


def test_who_says_nothing_is_known_by_its_size_and_who_says_that_it_is_new_is_new() -> None:
    bookings = RetryBookings()
    booked(bookings, prompt=100)
    booked(bookings, prompt=200)
    assert bookings.find(waiting_make(prompt=200), DUE_MS - 1) is None
    found = bookings.find(waiting_make(prompt=200), DUE_MS)
    assert found is not None
    assert found.prompt_tokens == 200
    assert bookings.find(waiting_make(prompt=300), DUE_MS) is None
    assert bookings.find(waiting_make(prompt=200, is_retry=False), DUE_MS) is None
    assert bookings.find(waiting_make(tenant="b", prompt=200), DUE_MS) is None
    returned = bookings.find(waiting_make(prompt=300, is_retry=True), DUE_MS)
    assert returned is not None
    assert returned.prompt_tokens == 100
    assert bookings.find(waiting_make(is_retry=True), 9000) is None


def test_a_place_is_redeemed_once() -> None:
    bookings, waiting = RetryBookings(), waiting_make()
    booked(bookings)
    found = bookings.find(waiting, DUE_MS)
    assert found is not None
    bookings.redeem(waiting.flow, found)
    assert bookings.find(waiting, DUE_MS) is None
    assert bookings.booked_us(waiting.flow, DUE_MS) == (0, 0)
    bookings.tick(DUE_MS)
    assert len(bookings) == 0


def test_there_are_only_so_many() -> None:
    bookings = RetryBookings()
    for _ in range(MOST_BOOKINGS + 5):
        booked(bookings)
    assert len(bookings) == MOST_BOOKINGS
    for number in range(MOST_FLOWS + 5):
        booked(bookings, tenant=f"tenant {number}", due_ms=9000)
    assert len(bookings) == MOST_BOOKINGS + MOST_FLOWS - 1
    bookings.tick(9000)
    assert len(bookings) == MOST_FLOWS - 1
    bookings.tick(12_000)
    assert len(bookings) == 0
