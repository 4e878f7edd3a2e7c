"""The files of a journal: segments named by the position of their first byte, and the reader's cursor.

Blocking disk work only. One thread may append while another reads and forgets.
"""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from gpuworker.wire.records import Record, records_read

logger = logging.getLogger(__name__)


class SegmentFolder:
    """`end` follows the last durable record, `cursor` the last acknowledged one."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        """Cuts off a torn tail."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._starts_lock = threading.Lock()
        self._starts = sorted(int(path.stem) for path in folder.glob("*.log"))
        self.cursor = self._cursor_load()
        if not self._starts:
            self._starts = [self.cursor]
        self._fd = self._open(self._starts[-1])
        self.end = self._recover()
        self.cursor = min(max(self.cursor, self._starts[0]), self.end)

    def append(self, data: bytes) -> bool:
        """Write and sync. False when the disk is full: nothing was stored. Any other OSError is final."""
        try:
            if self.end - self._starts[-1] >= self._segment_bytes:
                self._rotate()
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.ftruncate(self._fd, self.end - self._starts[-1])
            return False
        os.fsync(self._fd)
        self.end += len(data)
        return True

    def _rotate(self) -> None:
        fresh, start = self._open(self.end), self.end
        self.close()
        self._fd = fresh
        with self._starts_lock:
            self._starts.append(start)

    def read(self, after: int, limit: int) -> tuple[list[bytes], int]:
        """See `Journal.read`."""
        with self._starts_lock:
            starts, durable = list(self._starts), self.end
        position = min(max(after, starts[0]), durable)
        payloads: list[bytes] = []
        for start, end in zip(starts, [*starts[1:], durable], strict=True):
            if end <= position:
                continue
            for record in self._records(start, position, end):
                if len(payloads) == limit:
                    return payloads, position
                self._skipped(position, record.start)
                payloads.append(record.payload)
                position = record.end
            if len(payloads) < limit:
                self._skipped(position, end)
                position = end
        return payloads, position

    def forget(self, position: int) -> None:
        """Move the cursor (not synced: losing it costs a second delivery), delete what lies before it."""
        self.cursor = position
        fresh = self._folder / "cursor.new"
        fresh.write_text(str(position))
        fresh.replace(self._folder / "cursor")
        with self._starts_lock:
            kept = max(start for start in self._starts if start <= position)
            done = [start for start in self._starts if start < kept]
            self._starts = self._starts[len(done) :]
        for start in done:
            self._path(start).unlink(missing_ok=True)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:020d}.log"

    def _open(self, start: int) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._path(start), flags, 0o600)
        folder_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder_fd)  # else the new name may not survive
        finally:
            os.close(folder_fd)
        return fd

    def _records(self, start: int, position: int, end: int) -> Iterator[Record]:
        """Records of one segment; their offsets are positions."""
        with self._path(start).open("rb") as file:
            for record in records_read(file, max(position - start, 0), end - start):
                yield Record(record.payload, start + record.start, start + record.end)

    def _cursor_load(self) -> int:
        try:
            return int((self._folder / "cursor").read_text())
        except (FileNotFoundError, ValueError):  # first start, or torn: deliver again from the oldest kept
            return 0

    def _recover(self) -> int:
        start = self._starts[-1]
        file_end = start + os.fstat(self._fd).st_size
        end = max((record.end for record in self._records(start, start, file_end)), default=start)
        if end < file_end:
            logger.warning("journal %s: dropping a torn tail of %d bytes", self._folder, file_end - end)
            os.ftruncate(self._fd, end - start)
        os.fsync(self._fd)
        return end

    def _skipped(self, position: int, end: int) -> None:
        if position < end:
            logger.error(
                "journal %s: skipping %d damaged bytes at %d", self._folder, end - position, position
            )
