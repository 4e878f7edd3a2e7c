"""One reader of one log: what it has seen, and how it ends."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal
from uuid import UUID

import msgspec

from gateway.token_log.commands import EntryId, LogName
from gateway.token_log.entries import Entry, Opened, entries_of, is_end
from tenants.data_keys import SealBroken

Lost = Literal[
    "gone",  # expired, given up by its owner, or never there
    "overtaken",  # a newer attempt writes
    "owner_lost",  # its gateway is dead: no more will come
    "incomplete",  # its deadline is long over, and it has no end
    "unreadable",  # not sealed under this key, or altered
    "unavailable",  # Valkey is away too long
    "failed",  # a callback raised
]

logger = logging.getLogger(__name__)


class Follow:
    """Made by TokenLog.follow. Ends with the last entry, with `on_lost`, or by `close`."""

    def __init__(
        self,
        name: LogName,
        request_id: UUID,
        attempt: int,
        data_key: bytes,
        on_entry: Callable[[Entry], None],
        on_lost: Callable[[Lost], None],
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.at = EntryId(attempt, 0)  # the last block that was read
        self.opened: Opened | None = None
        self.is_closed = False
        self.is_paused = False
        self.started_at = time.monotonic()
        self.doom: Lost | None = None  # how it ends, once everything there is was delivered
        self._request_id = request_id
        self._data_key = data_key
        self._on_entry = on_entry
        self._on_lost = on_lost
        self._on_change = on_change
        self._backlog: deque[Entry] = deque()

    def close(self) -> None:
        """No callback is called any more. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._backlog.clear()
            self._on_change()

    def pause(self) -> None:
        """For a client that does not keep up: nothing more is read, or called, until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._on_change()

    # -- for the reader -----------------------------------------------------------------------------------

    @property
    def has_backlog(self) -> bool:
        """Entries of the last block are left, since it was paused."""
        return bool(self._backlog)

    @property
    def is_readable(self) -> bool:
        """The next block may be put in."""
        return not (self.is_closed or self.is_paused or self._backlog)

    def put(self, at: EntryId, sealed: bytes) -> None:
        """The next block."""
        if at.attempt != self.at.attempt:
            self.lose("overtaken")
        elif at.is_tombstone:
            self.lose("gone")
        elif at.position != self.at.position + 1:
            self._unreadable("a block is missing")
        else:
            try:
                entries = entries_of(self.name.open(self._data_key, at, sealed))
            except (SealBroken, msgspec.DecodeError) as error:
                self._unreadable(str(error))
                return
            self.at = at
            self.doom = None
            self._backlog += entries

    def deliver(self, count: int) -> int:
        """Call back for so many entries at most; how many it were."""
        delivered = 0
        while self._backlog and delivered < count and not self.is_paused:
            entry = self._backlog.popleft()
            delivered += 1
            if isinstance(entry, Opened):
                self.opened = entry
            try:
                self._on_entry(entry)
            except Exception:  # a defect of one stream must not stop the others
                logger.exception("request %s: following its log failed", self._request_id)
                self.lose("failed")
            if is_end(entry):
                self.close()
        return delivered

    def lose(self, reason: Lost) -> None:
        if self.is_closed:
            return
        self.close()
        try:
            self._on_lost(reason)
        except Exception:  # as above
            logger.exception("request %s: ending its log's reader failed", self._request_id)

    def _unreadable(self, why: str) -> None:
        logger.error("request %s: its log cannot be read: %s", self._request_id, why)
        self.lose("unreadable")
