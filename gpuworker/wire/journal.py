"""Append-only, fsynced record log on local disk: what must survive `kill -9` until somebody else holds it.

A position is a byte offset since the journal's first record and never goes back. One thread writes and syncs
groups of records: at once when somebody waits for one, else after COMMIT_MS or COMMIT_RECORDS. After a failed
fsync the kernel may have dropped the pages, so nothing is retried and the journal is finished
(https://wiki.postgresql.org/wiki/Fsync_Errors). `read` and `acknowledge` belong to one thread.
"""

import asyncio
import fcntl
import logging
import os
import threading
import time
import uuid
from pathlib import Path
from typing import NamedTuple, Self

from gpuworker.wire.records import record_encode
from gpuworker.wire.segments import SegmentFolder

COMMIT_MS = 10
COMMIT_RECORDS = 64
_DISK_INTERVAL_S = 0.05

logger = logging.getLogger(__name__)


class JournalFull(Exception):
    """The quota or the disk is used up; the record was not stored. Later ones may be."""


class JournalFailed(Exception):
    """The disk failed, or another process holds the folder. The owner must exit and be started again."""


class _Entry(NamedTuple):
    record: bytes
    waiter: "asyncio.Future[int] | None"


class Journal:
    """Holds its folder (flock) from `open` to `close`. `id` is the folder's for life: positions mean nothing
    in another journal."""

    def __init__(
        self, folder: Path, identity: str, segments: SegmentFolder, quota_bytes: int, lock_fd: int
    ) -> None:
        self.id = identity
        self._folder = folder
        self._segments = segments
        self._quota_bytes = quota_bytes
        self._lock_fd = lock_fd
        self._changed = threading.Condition()  # guards the five below
        self._queue: list[_Entry] = []
        self._unsynced_bytes = 0
        self._awaited = False  # somebody waits for the queue to become durable
        self._closing = False
        self._failure = ""
        self._disk_last = 0
        self._disk_next_at = 0.0
        self._thread = threading.Thread(target=self._commit_loop, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, folder: Path, *, segment_bytes: int = 64 << 20, quota_bytes: int = 1 << 30) -> Self:
        """Creates the folder, drops a torn tail. Raises JournalFailed."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            identity = _id_load(folder)
            segments = SegmentFolder(folder, segment_bytes)
        except OSError as error:
            os.close(lock_fd)
            cause = "another process has it open" if isinstance(error, BlockingIOError) else str(error)
            raise JournalFailed(f"journal {folder}: {cause}") from error
        return cls(folder, identity, segments, quota_bytes, lock_fd)

    async def append(self, payload: bytes) -> int:
        """The record's end position, once it is durable. Raises JournalFull, JournalFailed."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[int] = loop.create_future()
        self._enqueue(_Entry(record_encode(payload), waiter))
        loop.call_soon(self._wake)  # after what else is ready now has been appended: one group, one sync
        return await waiter

    def append_nowait(self, payload: bytes) -> None:
        """Durable with the next group commit. Raises JournalFull, JournalFailed."""
        self._enqueue(_Entry(record_encode(payload), None))
        self._wake()

    def read(self, after: int, limit: int) -> tuple[list[bytes], int]:
        """Up to `limit` durable records after a position (0: from the oldest kept), and where they end.

        Damaged records are skipped and logged; `after` inside a record means from the next one on.
        """
        return self._segments.read(after, limit)

    def acknowledge(self, position: int) -> None:
        """Everything before it is safe elsewhere: remember that, delete the segments wholly before it.

        Raises ValueError past the end.
        """
        if position > self.end:
            raise ValueError(f"position {position} is past the journal's end {self.end}")
        if position > self.acknowledged:
            self._segments.forget(position)

    async def close(self) -> None:
        """Make everything appended durable, then release the folder. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        self._segments.close()
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            os.close(lock_fd)

    @property
    def acknowledged(self) -> int:
        return self._segments.cursor

    @property
    def end(self) -> int:
        """Position after the last durable record."""
        return self._segments.end

    @property
    def pending(self) -> int:
        """Bytes not acknowledged, those on their way to the disk included."""
        with self._changed:
            return self.end + self._unsynced_bytes - self.acknowledged

    @property
    def used_fraction(self) -> float:
        """Share of the quota that is no longer available: not acknowledged yet, or the disk is too full."""
        available = min(self._quota_bytes - self.pending, self._disk_bytes_free())
        return 1.0 - max(available, 0) / self._quota_bytes

    @property
    def failure(self) -> str:
        """Why the journal takes no more records; empty while it does."""
        return self._failure

    def _disk_bytes_free(self) -> int:
        """As it was a moment ago: every request asks, and each time the file system takes microseconds."""
        now = time.monotonic()
        if now >= self._disk_next_at:
            self._disk_next_at = now + _DISK_INTERVAL_S
            disk = os.statvfs(self._folder)
            self._disk_last = disk.f_bavail * disk.f_frsize
        return self._disk_last

    def _enqueue(self, entry: _Entry) -> None:
        with self._changed:
            if self._failure or self._closing:
                raise JournalFailed(self._failure or f"journal {self._folder} is closed")
            if self.pending + len(entry.record) > self._quota_bytes:
                raise JournalFull(f"journal {self._folder} holds its quota of {self._quota_bytes} bytes")
            self._queue.append(entry)
            self._unsynced_bytes += len(entry.record)
            self._awaited = self._awaited or entry.waiter is not None

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    # -- the writing thread -------------------------------------------------------------------------------

    def _commit_loop(self) -> None:
        while group := self._group_take():
            try:
                stored = self._segments.append(b"".join(entry.record for entry in group))
            except OSError as error:
                self._fail(group, error)
                return
            self._settle(group, stored)

    def _group_take(self) -> list[_Entry]:
        """Waits; empty when the journal closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._awaited:
                self._changed.wait_for(
                    lambda: self._awaited or self._closing or len(self._queue) >= COMMIT_RECORDS,
                    COMMIT_MS / 1000,
                )
            group, self._queue, self._awaited = self._queue, [], False
            return group

    def _settle(self, group: list[_Entry], stored: bool) -> None:
        size = sum(len(entry.record) for entry in group)
        with self._changed:
            self._unsynced_bytes -= size
        if not stored:
            logger.error("journal %s: disk full, %d records not stored", self._folder, len(group))
        full = JournalFull(f"journal {self._folder}: disk full")
        position = self.end - size
        results: list[tuple[asyncio.Future[int], int | Exception]] = []
        for entry in group:
            position += len(entry.record)
            if entry.waiter is not None:
                results.append((entry.waiter, position if stored else full))
        _resolve(results)

    def _fail(self, group: list[_Entry], error: OSError) -> None:
        with self._changed:
            self._failure = f"journal {self._folder}: {error}"
            lost, self._queue = group + self._queue, []
        logger.critical("%s; %d records may be lost", self._failure, len(lost))
        failed = JournalFailed(self._failure)
        _resolve([(entry.waiter, failed) for entry in lost if entry.waiter is not None])


def _resolve(results: list[tuple["asyncio.Future[int]", int | Exception]]) -> None:
    """Wake the waiters, with one call per event loop."""

    def deliver(own: list[tuple["asyncio.Future[int]", int | Exception]]) -> None:
        for waiter, result in own:
            if waiter.done():  # its task was cancelled
                continue
            if isinstance(result, Exception):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)

    for loop in {waiter.get_loop() for waiter, _ in results}:
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, [pair for pair in results if pair[0].get_loop() is loop])


def _id_load(folder: Path) -> str:
    """Made once, durable before the first record is."""
    path = folder / "id"
    try:
        return path.read_text()
    except FileNotFoundError:
        fresh = folder / "id.new"
        with fresh.open("w") as file:
            file.write(uuid.uuid4().hex)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder_fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
        return path.read_text()
