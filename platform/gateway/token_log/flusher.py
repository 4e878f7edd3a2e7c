"""Writes all logs of a process over one connection: everything that waits in one pipeline, then the next.

The owner's heartbeat goes the same way, after the tombstones of logs that were given up: while a heartbeat
is seen, every log of its owner is either right or buried.
"""

import asyncio
import logging
import time
from functools import partial
from itertools import islice

from redis.exceptions import RedisError, ResponseError

from gateway.token_log.commands import EntryId, burying, last_id, marking, owner_key
from gateway.token_log.connection import Exchanger, OnReply, Reply, connected
from gateway.token_log.limits import LogLimits
from gateway.token_log.writer import Block, LogWriter

_PIPELINE_BYTES = 4 * 1024 * 1024
_PIPELINE_COMMANDS = 128  # more would hold the first ones' release, and the event loop, for milliseconds
_TICK_S = 0.1
_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 0.5
_ID_REFUSED = "equal or smaller than the target stream top item"

logger = logging.getLogger(__name__)


class Flusher:
    """The Outlet of every LogWriter of this process."""

    def __init__(self, url: str, owner: str, limits: LogLimits) -> None:
        self._url = url
        self._owner_key = owner_key(owner)
        self._limits = limits
        self.unconfirmed_bytes = 0
        self.given_up = 0  # logs, since the start
        self.writers: set[LogWriter] = set()  # that may still write
        self._unconfirmed: dict[LogWriter, None] = {}
        self._dirty: dict[LogWriter, None] = {}  # have something to send; oldest first
        self._doubtful: set[LogWriter] = set()  # an id of theirs was refused
        self._graves: dict[bytes, int] = {}  # key -> attempt; lost, and perhaps still there
        self._beat_due = True
        self._away_since = time.monotonic()  # 0 while Valkey answers
        self._wake = asyncio.Event()

    @property
    def away_s(self) -> float:
        """How long Valkey has not answered; 0 while it does."""
        return time.monotonic() - self._away_since if self._away_since else 0.0

    async def run(self) -> None:
        """Until cancelled."""
        backoff_s = _MIN_BACKOFF_S
        while True:
            try:
                async with connected(self._url, self._limits.answer_timeout_s) as valkey:
                    await self._resolve(valkey, [w for w in self.writers if w.confirmed or w.sent])
                    await self._flush(valkey, is_beat_due=True)
                    if self._away_since:
                        logger.info("token logs: Valkey answers")
                    self._away_since = 0.0
                    backoff_s = _MIN_BACKOFF_S
                    await self._flush_forever(valkey)
            except (RedisError, OSError) as error:
                if not self._away_since:
                    logger.warning("token logs: Valkey is away: %r", error)
            finally:
                self._away_since = self._away_since or time.monotonic()
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def watch(self) -> None:
        """Until cancelled: nobody waits longer for Valkey than was promised, and the heart beats."""
        beat_at, now, is_late = 0.0, time.monotonic(), False
        while True:
            asleep_since = now
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            # After this process was stopped or busy, what Valkey said meanwhile is read first.
            is_late = not is_late and now - asleep_since > 2 * _TICK_S
            if not is_late:
                self._overdue_give_up(now - self._limits.give_up_s)
            if now - beat_at >= self._limits.heartbeat_s:
                beat_at = now
                self._beat_due = True
                self._wake.set()

    def _overdue_give_up(self, latest: float) -> None:
        overdue = [writer for writer in self._unconfirmed if writer.waiting_since < latest]
        for writer in overdue:
            writer.give_up("unavailable")
        if overdue:
            logger.warning("token logs: %d given up, Valkey did not answer in time", len(overdue))

    # -- Outlet -------------------------------------------------------------------------------------------

    def dirty(self, writer: LogWriter) -> None:
        self.writers.add(writer)
        self._unconfirmed[writer] = None
        self._dirty[writer] = None
        self._wake.set()

    def clean(self, writer: LogWriter) -> None:
        self._unconfirmed.pop(writer, None)

    def ended(self, writer: LogWriter) -> None:
        self.writers.discard(writer)
        self._unconfirmed.pop(writer, None)
        self._dirty.pop(writer, None)
        if writer.lost:
            self.given_up += 1
            if writer.may_exist:
                self._graves[writer.name.key] = writer.attempt
                self._beat_due = True
                self._wake.set()

    # -- one connection -----------------------------------------------------------------------------------

    async def _flush_forever(self, valkey: Exchanger) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            is_beat_due, self._beat_due = self._beat_due, False
            await self._flush(valkey, is_beat_due)
            if self._doubtful:
                doubtful = [writer for writer in self._doubtful if not writer.lost]
                self._doubtful.clear()
                await self._resolve(valkey, doubtful)
            if self._dirty:
                self._wake.set()

    async def _flush(self, valkey: Exchanger, is_beat_due: bool) -> None:
        commands: list[tuple[bytes, OnReply]] = []
        if is_beat_due:
            graves = list(islice(self._graves.items(), _PIPELINE_COMMANDS))
            commands += [(burying(k, attempt), partial(self._buried, k, attempt)) for k, attempt in graves]
            if len(graves) == len(self._graves):
                commands.append((marking(self._owner_key, self._limits.owner_ttl_s), _demand))
            else:
                self._beat_due = True
                self._wake.set()
        size = 0
        while self._dirty and size < _PIPELINE_BYTES and len(commands) < _PIPELINE_COMMANDS:
            writer = next(iter(self._dirty))
            del self._dirty[writer]
            block = writer.take()
            size += len(block.command)
            commands.append((block.command, partial(self._written, writer, block)))
        await valkey.exchange(commands)

    def _written(self, writer: LogWriter, block: Block, reply: Reply) -> None:
        if writer.sent is not block:
            return  # given up meanwhile
        if reply is None:
            writer.give_up("gone")
        elif not isinstance(reply, ResponseError):
            writer.confirm()
        elif _ID_REFUSED in str(reply):
            self._doubtful.add(writer)
        else:
            logger.error("token logs: Valkey refused an entry: %s", reply)
            writer.give_up("refused")

    def _buried(self, key: bytes, attempt: int, reply: Reply) -> None:
        if isinstance(reply, ResponseError) and _ID_REFUSED not in str(reply):
            raise reply
        if self._graves.get(key) == attempt:
            del self._graves[key]

    async def _resolve(self, valkey: Exchanger, writers: list[LogWriter]) -> None:
        """Ask how far Valkey has them: what was sent may have arrived, what was confirmed may be lost."""
        for first in range(0, len(writers), _PIPELINE_COMMANDS):
            some = writers[first : first + _PIPELINE_COMMANDS]
            await valkey.exchange([(last_id(w.name.key), partial(_resolved, w)) for w in some])


def _resolved(writer: LogWriter, reply: Reply) -> None:
    _demand(reply)
    if not writer.lost:
        writer.resolve(EntryId.parse(reply) if reply is not None else None)


def _demand(reply: Reply) -> None:
    """Raises what Valkey refused: without it there is no going on."""
    if isinstance(reply, ResponseError):
        raise reply
