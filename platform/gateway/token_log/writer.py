"""One log as its owner writes it: entries are released, in order, when they are in Valkey.

A log that cannot be written in time, or grows too long, is given up: everything is released, the stream goes
on without a log, and what was written is buried, so that no gap is ever replayed.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from gateway.token_log.commands import EntryId, LogName, adding, ending, opening
from gateway.token_log.entries import Entry, Opened, block, encode, is_end
from gateway.token_log.limits import LogLimits

logger = logging.getLogger(__name__)

Release = Callable[[], None]


class Outlet(Protocol):
    """What writes for all logs of a process."""

    unconfirmed_bytes: int

    def dirty(self, writer: "LogWriter") -> None:
        """It has something to write."""

    def clean(self, writer: "LogWriter") -> None:
        """All of it is confirmed."""

    def ended(self, writer: "LogWriter") -> None:
        """It will write no more: it is complete, or `lost`."""


class Block:
    """Entries that are written by one command."""

    __slots__ = ("at", "command", "is_last", "releases", "since", "size")

    def __init__(
        self, at: EntryId, command: bytes, releases: list[Release], size: int, since: float, is_last: bool
    ) -> None:
        self.at = at
        self.command = command
        self.releases = releases
        self.size = size  # bytes of its entries
        self.since = since
        self.is_last = is_last


class LogWriter:
    """Made by TokenLog.open. `close` it when the answer has ended, however it ended."""

    __slots__ = (
        "_closing",
        "_data_key",
        "_encoded",
        "_has_end",
        "_limits",
        "_outlet",
        "_releases",
        "_since",
        "_size",
        "_ttl_ms",
        "attempt",
        "confirmed",
        "log_bytes",
        "lost",
        "may_exist",
        "name",
        "sent",
    )

    def __init__(
        self, name: LogName, data_key: bytes, opened: Opened, limits: LogLimits, outlet: Outlet
    ) -> None:
        self.name = name
        self.attempt = opened.attempt
        self.confirmed = 0  # position of the last block that is in Valkey
        self.sent: Block | None = None
        self.lost = ""  # why there is no log any more
        self.may_exist = False  # of a lost log: Valkey may have some of it
        self.log_bytes = 0
        self._data_key = data_key
        self._limits = limits
        self._outlet = outlet
        self._encoded: list[bytes] = []
        self._releases: list[Release] = []
        self._size = 0
        self._since = 0.0
        self._has_end = False
        self._closing: asyncio.Future[None] | None = None
        remaining_ms = max(0, opened.deadline_ms - time.time_ns() // 1_000_000)
        self._ttl_ms = remaining_ms + int(limits.keep_s * 1000)

    def append(self, entry: Entry, release: Release) -> None:
        """`release` is called when the entry is durable, or at once if there is no log any more.

        It must not raise, nor append.
        """
        if self.lost:
            release()
            return
        if self._has_end:
            raise ValueError("nothing comes after the last entry")
        encoded = encode(entry)
        size = len(encoded)
        if not self._encoded:
            self._since = time.monotonic()
        self._encoded.append(encoded)
        self._releases.append(release)
        self._has_end = is_end(entry)
        self._size += size
        self.log_bytes += size
        self._outlet.unconfirmed_bytes += size
        if self.log_bytes > self._limits.max_log_bytes:
            self.give_up("too_long")
        elif (
            self.unconfirmed_bytes > self._limits.max_unconfirmed_log_bytes
            or self._outlet.unconfirmed_bytes > self._limits.max_unconfirmed_bytes
        ):
            self.give_up("backlog")
        else:
            self._outlet.dirty(self)

    async def close(self) -> bool:
        """Whether the whole answer is in the log; waits for that, a few seconds at most.

        An answer that has no last entry yet is given up: nobody can follow it to its end.
        """
        if not (self._has_end or self.lost):
            self.give_up("abandoned")
        if self.is_waiting:
            self._closing = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(self._limits.give_up_s + self._limits.answer_timeout_s):
                    await self._closing
            except TimeoutError:
                self.give_up("unavailable")
        return not self.lost

    @property
    def is_waiting(self) -> bool:
        return self.sent is not None or bool(self._encoded)

    @property
    def waiting_since(self) -> float:
        """Monotonic time of the oldest entry that is not confirmed; only while `is_waiting`."""
        return self.sent.since if self.sent is not None else self._since

    @property
    def unconfirmed_bytes(self) -> int:
        return self._size + (self.sent.size if self.sent is not None else 0)

    # -- for the outlet -----------------------------------------------------------------------------------

    def take(self) -> Block:
        """What is to be written now: all that waits, or again what was not confirmed."""
        if self.sent is not None:
            return self.sent
        at = EntryId(self.attempt, self.confirmed + 1)
        key = self.name.key
        sealed = self.name.seal(self._data_key, at, block(self._encoded))
        keep_ms = int(self._limits.keep_s * 1000) if self._has_end else self._ttl_ms
        if at.position == 1:
            command = opening(key, at, sealed, keep_ms)
        elif self._has_end:
            command = ending(key, at, sealed, keep_ms)
        else:
            command = adding(key, at, sealed)
        self.sent = Block(at, command, self._releases, self._size, self._since, self._has_end)
        self._encoded, self._releases, self._size = [], [], 0
        return self.sent

    def confirm(self) -> None:
        """The block that was sent is in Valkey."""
        sent = self.sent
        assert sent is not None
        self.sent = None
        self.confirmed = sent.at.position
        self._outlet.unconfirmed_bytes -= sent.size
        self._release(sent.releases)
        if self.is_waiting:
            self._outlet.dirty(self)
            return
        self._outlet.clean(self)
        if sent.is_last:
            self._end()

    def resolve(self, last: EntryId | None) -> None:
        """After a doubt: `last` is the newest block that Valkey has of this request."""
        if last is not None and last.attempt > self.attempt:
            self.give_up("overtaken")
            return
        held = last.position if last is not None and last.attempt == self.attempt else 0
        if self.sent is not None and held == self.sent.at.position:
            self.confirm()
        elif held != self.confirmed:
            self.give_up("gone")
        elif self.is_waiting:
            self._outlet.dirty(self)

    def give_up(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = reason
        releases = (self.sent.releases if self.sent is not None else []) + self._releases
        self._outlet.unconfirmed_bytes -= self.unconfirmed_bytes
        self.may_exist = self.confirmed > 0 or self.sent is not None
        self.sent = None
        self._encoded, self._releases, self._size = [], [], 0
        self._release(releases)
        self._end()

    def _end(self) -> None:
        self._outlet.ended(self)
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    def _release(self, releases: list[Release]) -> None:
        for release in releases:
            try:
                release()
            except Exception:  # a defect of one stream must not stop the writing for all
                logger.exception("releasing an entry of a token log failed")
