"""Usage records on local disk until PostgreSQL has them: appended and fsynced first, drained in batches.

A record the ledger refuses for its content (no price yet, an unknown tenant) is set aside in a second journal
and tried again every minute, so that it neither blocks the others nor gets lost.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any, Self

import msgspec
import psycopg

from billing.contracts import UsageRecord
from billing.ledger import PriceMissing, usage_record
from gateway.metrics import Metrics
from gateway.settings import Settings
from gpuworker.wire.journal import Journal, JournalFailed, JournalFull

BATCH_RECORDS = 500
_IDLE_S = 5.0
_MIN_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 10.0
_CONNECT_TIMEOUT_S = 5
_WRITE_TIMEOUT_S = 30.0
_ASIDE_QUOTA_BYTES = 64 << 20
_CONTENT_ERRORS = (psycopg.DataError, psycopg.IntegrityError, PriceMissing, msgspec.MsgspecError, ValueError)

_decoder = msgspec.json.Decoder(UsageRecord)

logger = logging.getLogger(__name__)


class SpoolUnavailable(Exception):
    """The record is not on disk: the request must not be reported as completed."""


class UsageSpool:
    """Holds its folder's lock from `open` to `close`."""

    def __init__(self, settings: Settings, metrics: Metrics, journal: Journal, aside: Journal) -> None:
        self._database_url = settings.database_url
        self._max_fraction = settings.limits.max_spool_fraction
        self._aside_retry_s = settings.limits.spool_aside_retry_s
        self._metrics = metrics
        self._journal = journal
        self._aside = aside
        self._appended = asyncio.Event()
        self._failure = ""
        self._backoff_s = _MIN_BACKOFF_S
        self._retry_aside_at = time.monotonic()

    @classmethod
    async def open(cls, settings: Settings, metrics: Metrics) -> Self:
        """Raises JournalFailed."""
        journal = Journal.open(settings.spool / "usage", quota_bytes=settings.limits.spool_quota_bytes)
        try:
            aside = Journal.open(settings.spool / "aside", quota_bytes=_ASIDE_QUOTA_BYTES)
        except JournalFailed:
            await journal.close()
            raise
        return cls(settings, metrics, journal, aside)

    async def append(self, record: UsageRecord) -> None:
        """Returns once the record is durable. Raises SpoolUnavailable."""
        try:
            await self._journal.append(msgspec.json.encode(record))
        except JournalFailed as error:
            self._failure = str(error)
            raise SpoolUnavailable(str(error)) from error
        except JournalFull as error:
            raise SpoolUnavailable(str(error)) from error
        finally:
            self._appended.set()

    @property
    def refusal(self) -> str:
        """Why no request may be admitted now; empty while they may."""
        if self._failure or self._journal.failure:
            return "usage cannot be recorded: its disk failed"
        if self._journal.used_fraction > self._max_fraction:
            return "usage cannot be recorded: the spool is nearly full"
        return ""

    def measure(self) -> None:
        self._metrics.spool_pending_bytes.set(self._journal.pending)
        self._metrics.spool_used_fraction.set(self._journal.used_fraction)
        self._metrics.spool_set_aside.set(self._aside.pending)

    async def run(self) -> None:
        """Drain until cancelled."""
        while True:
            await self._batch()
            try:
                await self._drain()
            except (psycopg.Error, JournalFull, OSError, TimeoutError) as error:
                logger.warning("usage spool: waiting for PostgreSQL: %s", error)
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)

    async def close(self) -> None:
        await self._journal.close()
        await self._aside.close()

    async def _drain(self) -> None:
        """Until the connection fails."""
        async with await psycopg.AsyncConnection.connect(
            self._database_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        ) as conn:
            while True:
                journal, payloads, position = await self._batch()
                async with asyncio.timeout(_WRITE_TIMEOUT_S):
                    await self._write(conn, payloads)
                journal.acknowledge(position)
                self._backoff_s = _MIN_BACKOFF_S

    async def _batch(self) -> tuple[Journal, list[bytes], int]:
        """The next records to write, waiting for some."""
        while True:
            for journal in (self._journal, self._aside):
                if journal is self._aside and time.monotonic() < self._retry_aside_at:
                    continue
                payloads, position = journal.read(journal.acknowledged, BATCH_RECORDS)
                if payloads:
                    return journal, payloads, position
                if journal is self._aside:
                    self._retry_aside_at = time.monotonic() + self._aside_retry_s
            self._appended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_S):
                    await self._appended.wait()

    async def _write(self, conn: psycopg.AsyncConnection[Any], payloads: list[bytes]) -> None:
        try:
            await usage_record(conn, [_decoder.decode(payload) for payload in payloads])
        except _CONTENT_ERRORS as error:
            if len(payloads) > 1:  # find the one at fault; writing twice is harmless
                for payload in payloads:
                    await self._write(conn, [payload])
                return
            logger.error("usage spool: a record is refused and set aside: %s", error)
            await self._aside.append(payloads[0])
            self._retry_aside_at = time.monotonic() + self._aside_retry_s
