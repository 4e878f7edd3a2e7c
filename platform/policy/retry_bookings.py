"""Places kept for clients that were told to come back: a Retry-After is only honest if there is room then.

A refused request is booked for when its flow's backlog, and everybody it told before, will be done. When the
client returns, its place is kept for a moment; those who come for the first time do not get it. HTTP does not
say who it is that returns: a request of the same flow that says so, or else has as many prompt tokens.
"""

import heapq
from collections import deque
from typing import NamedTuple

from policy.flow import Flow
from policy.waiting import Waiting

# A place is kept from a while before: what is let in now is still there when the client comes.
KEPT_BEFORE_MS = 5_000.0
KEPT_MS = 2_500.0  # a header says whole seconds, and networks take their time
MOST_BOOKINGS = 1_024  # of one flow
MOST_FLOWS = 4_096


class _Booking(NamedTuple):
    due_ms: float
    number: int
    prompt_tokens: int
    work_us: int


class _Book:
    __slots__ = ("due", "due_us", "future", "total_us")

    def __init__(self) -> None:
        self.future: list[_Booking] = []  # a heap
        self.due: deque[_Booking] = deque()
        self.due_us = self.total_us = 0

    def advance(self, now_ms: float) -> None:
        while self.future and self.future[0].due_ms - KEPT_BEFORE_MS <= now_ms:
            booking = heapq.heappop(self.future)
            self.due.append(booking)
            self.due_us += booking.work_us
        while self.due and self.due[0].due_ms + KEPT_MS < now_ms:
            self.forget(self.due.popleft())

    def forget(self, booking: _Booking) -> None:
        self.due_us -= booking.work_us
        self.total_us -= booking.work_us

    def __len__(self) -> int:
        return len(self.future) + len(self.due)


class RetryBookings:
    def __init__(self) -> None:
        self._books: dict[Flow, _Book] = {}
        self._number = 0

    def __len__(self) -> int:
        return sum(map(len, self._books.values()))

    def booked_us(self, flow: Flow, now_ms: float) -> tuple[int, int]:
        """Work that is kept room for now, and all that was promised."""
        book = self._books.get(flow)
        if book is None:
            return 0, 0
        book.advance(now_ms)
        return book.due_us, book.total_us

    def book(self, waiting: Waiting, due_ms: float) -> bool:
        """False: there are too many."""
        book = self._books.get(waiting.flow)
        if book is None:
            if len(self._books) >= MOST_FLOWS:
                return False
            book = self._books[waiting.flow] = _Book()
        if len(book) >= MOST_BOOKINGS:
            return False
        self._number += 1
        heapq.heappush(book.future, _Booking(due_ms, self._number, waiting.prompt_tokens, waiting.work_us))
        book.total_us += waiting.work_us
        return True

    def find(self, waiting: Waiting, now_ms: float) -> _Booking | None:
        """The booking that this request redeems."""
        book = self._books.get(waiting.flow)
        if book is None or waiting.is_retry is False:
            return None
        book.advance(now_ms)
        due = [booking for booking in book.due if booking.due_ms <= now_ms]
        same = (booking for booking in due if booking.prompt_tokens == waiting.prompt_tokens)
        return next(same, due[0] if due and waiting.is_retry else None)

    def redeem(self, flow: Flow, booking: _Booking) -> None:
        book = self._books[flow]
        book.due.remove(booking)
        book.forget(booking)

    def tick(self, now_ms: float) -> None:
        for flow, book in list(self._books.items()):
            book.advance(now_ms)
            if not book:
                del self._books[flow]
