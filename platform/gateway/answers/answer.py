"""What one client is still owed of an answer: filled by rows, emptied by the connection that carries it.

Where the rows come from is not known here: from replicas as they compute, from the token log, or from a
stored answer. The events are numbered from 1; of one that is resumed the first `after` are not sent again.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.answer_parts import Finished, PromptRow, Row
from gateway.dialects.base import Event, Renderer, Whole, WholeChoice
from gateway.errors import ApiError
from gateway.wake import Wake

UNNUMBERED = 0


class Framing(Protocol):
    """An event's bytes on the connection: its number (or UNNUMBERED), name and data."""

    def __call__(self, number: int, name: bytes, data: bytes) -> bytes: ...


class Answer:
    """A sink. Times are monotonic seconds.

    `framing` None: the answer is sent in one piece, so its texts are kept apart. `on_backlog` is told True
    when more than `pause_bytes` wait for the client, False when it is less than half of that again.
    """

    __slots__ = (
        "_choices",
        "_framing",
        "_is_broken_off",
        "_number",
        "_opened",
        "_pause_bytes",
        "_prompt_logprobs",
        "after",
        "continued_by",
        "failure",
        "guard",
        "is_announced",
        "is_backlogged",
        "is_ended",
        "last_written_at",
        "left",
        "on_backlog",
        "pending",
        "pending_bytes",
        "ping_due",
        "renderer",
        "wake",
        "was_written",
        "whole",
        "write_now",
        "writing_since",
    )

    def __init__(
        self,
        renderer: Renderer,
        framing: Framing | None,
        *,
        choices: int,
        prompts: int,
        now: float,
        after: int = 0,
        pause_bytes: int = 0,
    ) -> None:
        self.renderer = renderer
        self.after = after
        self._framing = framing
        self._number = 0
        self._opened = False
        self._pause_bytes = pause_bytes
        self.on_backlog: Callable[[bool], None] | None = None
        if framing is None:
            self._choices: list[tuple[list[str], list[Row]]] = [([], []) for _ in range(choices)]
            self._prompt_logprobs: list[list[PromptRow]] = [[] for _ in range(prompts)]
        self.pending: list[bytes] = []
        self.pending_bytes = 0
        self.is_backlogged = False
        self.is_ended = False  # nothing comes after what is pending
        self.failure: ApiError | None = None
        self._is_broken_off = False
        self.whole: Whole | None = None
        self.is_announced = False  # its client was told what it is called
        self.left = False  # nobody reads it any more
        self.ping_due = False
        self.continued_by = 0  # the number of the replica that went on, until its client was told
        self.last_written_at = now
        self.writing_since = 0.0  # 0 while no write waits for the client
        self.guard: asyncio.Timeout | None = None  # rescheduled to now to end a write nobody reads
        self.write_now: Callable[[bytes], bool] | None = None  # while nothing else is being written
        self.was_written = False  # by it, since the watchdog looked
        self.wake = Wake()

    @property
    def is_stream(self) -> bool:
        return self._framing is not None

    # -- filled -------------------------------------------------------------------------------------------

    def row(self, row: Row) -> None:
        if self._framing is None:
            texts, rows = self._choices[row.choice]
            texts.append(row.text)
            if row.logprobs:
                rows.append(row)
        elif data := self.renderer.delta(row):
            if not self._opened:
                self._open()
            self._emit(self.renderer.delta_name, data, self.write_now)

    def prompt_row(self, row: PromptRow) -> None:
        if self._framing is None:
            self._prompt_logprobs[row.prompt].append(row)
        else:
            self._emit_all(self.renderer.prompt_delta(row))

    def continued(self, number: int) -> None:
        """An answer in one piece has shown nothing that could be contradicted."""
        if self._framing is not None and not self.is_ended:
            self.continued_by = number
            self.wake.set()

    def finished(self, finished: Finished) -> None:
        if self.is_ended:
            return
        if self._framing is None:
            self.whole = Whole(
                [
                    WholeChoice("".join(texts), [token for row in rows for token in row.logprobs], end)
                    for (texts, rows), end in zip(self._choices, finished.ends, strict=True)
                ],
                finished.usage,
                [[token for row in rows for token in row.tokens] for rows in self._prompt_logprobs],
            )
        else:
            self.write_now = None  # the last events leave in one write, with the end of the response
            self._emit_all(self.renderer.closing(finished.ends, finished.usage))
            if self.after > self._number:
                message = f"this stream has {self._number} events; there is nothing after {self.after}"
                self.failure = ApiError("invalid_value", message, param="after")
        self._end()

    def failed(self, error: ApiError) -> None:
        """The connection says it as a status, where the response has not begun; see `failure_events`."""
        if not self.is_ended:
            self.failure = error
            self._end()

    def break_off(self, error: ApiError) -> None:
        """This connection ends, whatever becomes of the answer: what follows may still be asked for."""
        if not self.is_ended:
            self._is_broken_off = True
            self.failed(error)

    def cut(self, error: ApiError) -> None:
        """As `break_off`, at once: what was not sent yet is not sent any more."""
        self.on_backlog = None  # it ends: there is nothing to go on with
        self.drop_pending()
        self._is_broken_off = True
        self.failure, self.is_ended = error, True
        self.writing_since = 0.0  # or it would be cut again until the connection is gone
        if self.guard is not None:
            guard, self.guard = self.guard, None
            guard.reschedule(asyncio.get_running_loop().time())
        self.wake.set()

    def _open(self) -> None:
        self._opened = True
        for event in self.renderer.opening():
            self._emit(event.name, event.data)

    def _emit_all(self, events: list[Event]) -> None:
        if events and not self._opened:
            self._open()
        for event in events:
            self._emit(event.name, event.data)

    def _emit(self, name: bytes, data: bytes, write_now: Callable[[bytes], bool] | None = None) -> None:
        self._number = number = self._number + 1
        if number <= self.after or self.left:
            return
        assert self._framing is not None
        framed = self._framing(number, name, data)
        if write_now is not None and not self.pending and write_now(framed):
            self.was_written = True
            return
        self.pending.append(framed)
        self.pending_bytes += len(framed)
        self.wake.set()
        if self.pending_bytes > self._pause_bytes and not self.is_backlogged and self.on_backlog is not None:
            self.is_backlogged = True
            self.on_backlog(True)

    def _end(self) -> None:
        self.is_ended = True
        self.wake.set()

    # -- emptied ------------------------------------------------------------------------------------------

    def take(self, max_bytes: int) -> bytes:
        """Pending events joined, at least one, up to `max_bytes` where that splits between events."""
        if self.pending_bytes <= max_bytes:
            data = self.pending[0] if len(self.pending) == 1 else b"".join(self.pending)
            self.drop_pending()
            return data
        size = count = 0
        for chunk in self.pending:
            if count and size + len(chunk) > max_bytes:
                break
            size += len(chunk)
            count += 1
        data = b"".join(self.pending[:count])
        del self.pending[:count]
        self._taken(size)
        return data

    def take_one(self) -> bytes:
        data = self.pending.pop(0)
        self._taken(len(data))
        return data

    def drop_pending(self) -> None:
        self.pending.clear()
        self._taken(self.pending_bytes)

    def failure_events(self) -> bytes:
        """Of a stream that had begun, framed.

        Of one that was broken off they have no number: what its client goes on from is the last event it has.
        """
        assert self.failure is not None
        assert self._framing is not None
        framed = []
        for event in self.renderer.failed(self.failure):
            self._number += 1
            if self._is_broken_off or self._number > self.after:
                number = UNNUMBERED if self._is_broken_off else self._number
                framed.append(self._framing(number, event.name, event.data))
        return b"".join(framed)

    def leave(self) -> None:
        """The client is gone."""
        self.left = True
        self.wake.set()

    def _taken(self, size: int) -> None:
        self.pending_bytes -= size
        if self.is_backlogged and self.pending_bytes * 2 < self._pause_bytes:
            self.is_backlogged = False
            if self.on_backlog is not None:
                self.on_backlog(False)
