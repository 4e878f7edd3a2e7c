"""The token logs of a gateway process: what was sent to clients, kept in Valkey so that it can be sent again.

Entries are sealed under the tenant's data key. A request has one log, of its newest attempt; it is complete
up to what any client saw, or it is not there.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.token_log.commands import FIELD, EntryId, LogName, owner_key
from gateway.token_log.entries import Entry, Opened, entries_of
from gateway.token_log.flusher import Flusher
from gateway.token_log.follow import Follow, Lost
from gateway.token_log.limits import LogLimits
from gateway.token_log.reader import Reader
from gateway.token_log.writer import LogWriter
from tenants.data_keys import SealBroken

_CONNECTIONS = 8  # for questions about single requests

logger = logging.getLogger(__name__)


class LogUnavailable(Exception):
    """Valkey does not answer."""


class Marks(NamedTuple):
    """What is said about a running request beside its log."""

    has_listeners: bool  # somebody follows it, on any gateway
    is_cancelled: bool  # nobody wants it any more


class TokenLog:
    """`owner` is this process's incarnation; no other process may ever have the same."""

    def __init__(self, redis_url: str, owner: str, limits: LogLimits | None = None) -> None:
        self.owner = owner
        self._limits = limits or LogLimits()
        self._flusher = Flusher(redis_url, owner, self._limits)
        self._reader = Reader(redis_url, self._limits)
        self._url = redis_url
        self._client: Redis | None = None  # while `run` runs

    async def run(self) -> None:
        """Until cancelled; then readers elsewhere learn at once that nothing more will come from here."""
        self._client = valkey = self._connect()
        try:
            async with asyncio.TaskGroup() as parts:
                for part in (self._flusher, self._reader):
                    parts.create_task(part.run())
                    parts.create_task(part.watch())
        finally:
            self._client = None
            with suppress(RedisError, OSError):  # the heartbeat ends by itself, too
                await valkey.delete(owner_key(self.owner))
            await valkey.aclose()

    @property
    def is_ready(self) -> bool:
        """Valkey answers."""
        return not self._flusher.away_s

    @property
    def given_up(self) -> int:
        """Logs that were lost since the start."""
        return self._flusher.given_up

    @property
    def unconfirmed_bytes(self) -> int:
        return self._flusher.unconfirmed_bytes

    @property
    def followers(self) -> int:
        return len(self._reader.follows)

    def open(
        self, tenant_id: UUID, request_id: UUID, attempt: int, data_key: bytes, opened: Opened
    ) -> LogWriter:
        """A new log, instead of any older attempt's. It is `lost` from the start while Valkey is away."""
        opened = msgspec.structs.replace(opened, attempt=attempt, owner=self.owner)
        name = LogName(tenant_id, request_id)
        writer = LogWriter(name, data_key, opened, self._limits, self._flusher)
        if self._flusher.away_s > self._limits.give_up_s:
            writer.give_up("unavailable")
        writer.append(opened, _nothing)
        return writer

    async def find(self, tenant_id: UUID, request_id: UUID, data_key: bytes) -> Opened | None:
        """The first entry of the newest attempt; None when there is no log. Raises LogUnavailable."""
        name = LogName(tenant_id, request_id)
        try:
            found: Any = await self._valkey.xrange(name.key, count=1)
        except (RedisError, OSError) as error:
            raise LogUnavailable("the token log cannot be reached") from error
        if not found or EntryId.parse(found[0][0]).is_tombstone:
            return None
        raw_id, fields = found[0]
        try:
            first = entries_of(name.open(data_key, EntryId.parse(raw_id), fields[FIELD]))[0]
        except (SealBroken, msgspec.DecodeError) as error:
            logger.error("request %s: its log cannot be read: %s", request_id, error)
            return None
        return first if isinstance(first, Opened) else None

    def follow(
        self,
        tenant_id: UUID,
        request_id: UUID,
        attempt: int,
        data_key: bytes,
        on_entry: Callable[[Entry], None],
        on_lost: Callable[[Lost], None],
    ) -> Follow:
        """Every entry of this attempt, from the first on, written or still to come. Callbacks must not block.

        The log may be opened a few seconds later than this.
        """
        name = LogName(tenant_id, request_id)
        follow = Follow(name, request_id, attempt, data_key, on_entry, on_lost, self._reader.changed)
        self._reader.add(follow)
        return follow

    async def listen(self, tenant_id: UUID, request_id: UUID) -> None:
        """Somebody is about to follow this request: its owner does not end it for want of listeners."""
        key = LogName(tenant_id, request_id).listener_key
        with suppress(RedisError, OSError, LogUnavailable):  # following it will say the same
            await self._valkey.set(key, b"1", px=int(self._limits.listener_ttl_s * 1000))

    async def has_listeners(self, tenant_id: UUID, request_id: UUID) -> bool:
        """Whether somebody follows this request, on any gateway. While Valkey is away nobody can."""
        return await self._exists(LogName(tenant_id, request_id).listener_key)

    async def is_alive(self, owner: str) -> bool:
        """Whether this gateway's heart beats; False while Valkey is away."""
        return await self._exists(owner_key(owner))

    async def cancel(self, tenant_id: UUID, request_id: UUID, attempt: int = 1) -> None:
        """Tell the owner, wherever it is, that nobody wants the answer any more. Raises LogUnavailable."""
        key = LogName(tenant_id, request_id).cancel_key
        try:
            await self._valkey.set(key, b"%d" % attempt, px=int(self._limits.keep_s * 1000))
        except (RedisError, OSError) as error:
            raise LogUnavailable("the token log cannot be reached") from error

    async def uncancel(self, tenant_id: UUID, request_id: UUID) -> None:
        """Somebody wants it after all. Raises LogUnavailable."""
        try:
            await self._valkey.delete(LogName(tenant_id, request_id).cancel_key)
        except (RedisError, OSError) as error:
            raise LogUnavailable("the token log cannot be reached") from error

    async def is_cancelled(self, tenant_id: UUID, request_id: UUID, attempt: int = 1) -> bool:
        """Whether `cancel` was called for this attempt; False while Valkey is away."""
        (marks,) = await self.marks([(tenant_id, request_id, attempt)])
        return marks.is_cancelled

    async def marks(self, requests: Sequence[tuple[UUID, UUID, int]]) -> list[Marks]:
        """What others say about each (tenant, request, attempt): nothing, while Valkey is away."""
        try:
            pipeline = self._valkey.pipeline(transaction=False)
            for tenant_id, request_id, _ in requests:
                name = LogName(tenant_id, request_id)
                pipeline.mget(name.listener_key, name.cancel_key)
            found: Any = await pipeline.execute()
        except (RedisError, OSError, LogUnavailable):
            return [Marks(False, False)] * len(requests)
        return [
            Marks(listener is not None, cancelled is not None and int(cancelled) >= attempt)
            for (listener, cancelled), (_, _, attempt) in zip(found, requests, strict=True)
        ]

    async def _exists(self, key: bytes) -> bool:
        try:
            return bool(await self._valkey.exists(key))
        except (RedisError, OSError, LogUnavailable):
            return False

    @property
    def _valkey(self) -> Redis:
        """Raises LogUnavailable."""
        if self._client is None:
            raise LogUnavailable("the token log is not running")
        return self._client

    def _connect(self) -> Redis:
        timeout_s = self._limits.answer_timeout_s
        pool = BlockingConnectionPool.from_url(
            self._url,
            protocol=2,
            max_connections=_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        return Redis.from_pool(pool)


def _nothing() -> None:
    """The first entry has nobody who waits for it."""
