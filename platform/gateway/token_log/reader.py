"""Reads all followed logs of a process over one connection, by one poll; nobody waits for another's callback.

A log's end is decided here, too: its owner is dead, it does not exist any more, or Valkey is away too long.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial

from redis.exceptions import RedisError, ResponseError

from gateway.token_log.commands import EntryId, existing, marking, owner_key, reading
from gateway.token_log.connection import Exchanger, OnReply, Reply, connected
from gateway.token_log.follow import Follow
from gateway.token_log.limits import LogLimits

_LOGS = 64  # read by one command, and of each so many blocks
_BLOCKS = 64
_SLICE = 128  # entries delivered before the event loop has its turn
_PIPELINE_COMMANDS = 1000
_BACKOFF_S = 0.2

logger = logging.getLogger(__name__)

Place = tuple[bytes, EntryId]


class Reader:
    """Holds every open Follow of this process."""

    def __init__(self, url: str, limits: LogLimits) -> None:
        self._url = url
        self._limits = limits
        self.follows: set[Follow] = set()
        self._newcomers: list[Follow] = []
        self._changed = asyncio.Event()
        self._away_since = time.monotonic()  # 0 while Valkey answers
        self._connected_at = 0.0
        self._missing: dict[str, float] = {}  # owner without a heartbeat -> since when
        self._owners_checked_at = 0.0
        self._follows_checked_at = 0.0
        self._slice = _SLICE

    def add(self, follow: Follow) -> None:
        self.follows.add(follow)
        self._newcomers.append(follow)
        self._changed.set()

    def changed(self) -> None:
        """One was closed, or goes on."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with connected(self._url, self._limits.answer_timeout_s) as valkey:
                    self._connected_at = time.monotonic()
                    self._missing.clear()
                    self._newcomers = list(self.follows)
                    await self._poll_forever(valkey)
            except (RedisError, OSError) as error:
                if not self._away_since:
                    logger.warning("followed token logs: Valkey is away: %r", error)
            finally:
                self._away_since = self._away_since or time.monotonic()
            await asyncio.sleep(_BACKOFF_S)

    async def watch(self) -> None:
        """Until cancelled: nobody waits for Valkey longer than was promised."""
        while True:
            await asyncio.sleep(_BACKOFF_S)
            if self._away_since:
                latest = time.monotonic() - self._limits.patience_s
                for follow in list(self.follows):
                    if max(self._away_since, follow.started_at) < latest:
                        follow.lose("unavailable")
                self._closed_forget()

    def _closed_forget(self) -> None:
        self.follows = {follow for follow in self.follows if not follow.is_closed}

    # -- one connection -----------------------------------------------------------------------------------

    async def _poll_forever(self, valkey: Exchanger) -> None:
        has_more = False
        while True:
            if not has_more:
                await self._pause()
            self._changed.clear()
            self._closed_forget()
            await self._check(valkey, time.monotonic())
            has_more = await self._read(valkey)

    async def _pause(self) -> None:
        """Until the next poll, or something changes."""
        try:
            async with asyncio.timeout(self._limits.poll_s if self.follows else None):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _read(self, valkey: Exchanger) -> bool:
        """Whether there is more than was read."""
        has_more = False
        for follow in [follow for follow in self.follows if follow.has_backlog]:
            await self._deliver(follow)
        for groups in _commands([follow for follow in self.follows if follow.is_readable]):
            reply = await valkey.ask(reading(list(groups), _BLOCKS))
            self._away_since = 0.0
            found = dict(reply or ())
            for (key, _), follows in groups.items():
                blocks = found.get(key, ())
                has_more |= len(blocks) == _BLOCKS
                for follow in follows:
                    await self._put(follow, blocks)
        return has_more

    async def _put(self, follow: Follow, blocks: Iterable[tuple[bytes, list[bytes]]]) -> None:
        if not blocks and follow.doom is not None:
            follow.lose(follow.doom)
        for raw_id, (_, sealed) in blocks:
            if not follow.is_readable:
                break  # the rest is read again
            follow.put(EntryId.parse(raw_id), sealed)
            await self._deliver(follow)

    async def _deliver(self, follow: Follow) -> None:
        while delivered := follow.deliver(self._slice):
            self._slice -= delivered
            if self._slice <= 0:
                await asyncio.sleep(0)
                self._slice = _SLICE

    # -- is there more to come? ---------------------------------------------------------------------------

    async def _check(self, valkey: Exchanger, now: float) -> None:
        commands: list[tuple[bytes, OnReply]] = []
        if now - self._owners_checked_at >= self._limits.owner_check_s:
            self._owners_checked_at = now
            owners = {follow.opened.owner for follow in self.follows if follow.opened is not None}
            commands += [(existing(owner_key(o)), partial(self._owner_seen, o, now)) for o in owners]
            self._missing = {owner: since for owner, since in self._missing.items() if owner in owners}
        newcomers, self._newcomers = self._newcomers, []
        if now - self._follows_checked_at >= self._limits.follow_check_s:
            self._follows_checked_at = now
            newcomers = list(self.follows)
        for follow in newcomers:
            commands.append((marking(follow.name.listener_key, self._limits.listener_ttl_s), _demand))
            commands.append((existing(follow.name.key), partial(self._log_seen, follow, now)))
        for first in range(0, len(commands), _PIPELINE_COMMANDS):
            await valkey.exchange(commands[first : first + _PIPELINE_COMMANDS])
        if self._missing:
            self._orphans_doom(now)

    def _owner_seen(self, owner: str, now: float, reply: Reply) -> None:
        _demand(reply)
        if reply:
            self._missing.pop(owner, None)
        else:
            self._missing.setdefault(owner, now)

    def _log_seen(self, follow: Follow, now: float, reply: Reply) -> None:
        _demand(reply)
        opened = follow.opened
        if opened is None:
            if now - follow.started_at >= self._limits.opening_s:
                follow.doom = "gone"
        elif not reply:
            follow.doom = "gone"
        elif time.time() > opened.deadline_ms / 1000 + self._limits.overtime_s:
            follow.doom = "incomplete"

    def _orphans_doom(self, now: float) -> None:
        """Missing twice. After Valkey was away its owners have a moment to beat again."""
        if now - self._connected_at < self._limits.owner_ttl_s:
            return
        dead = {owner for owner, since in self._missing.items() if since < now}
        for follow in self.follows:
            if follow.opened is not None and follow.opened.owner in dead:
                follow.doom = "owner_lost"


def _commands(follows: list[Follow]) -> Iterator[dict[Place, list[Follow]]]:
    """Who is read for by each command: those at the same place together, and a log only once."""
    places: dict[Place, list[Follow]] = defaultdict(list)
    for follow in follows:
        places[follow.name.key, follow.at].append(follow)
    rounds: list[list[Place]] = []
    occurrences: dict[bytes, int] = defaultdict(int)
    for place in places:
        nth = occurrences[place[0]]
        occurrences[place[0]] += 1
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append(place)
    for some in rounds:
        for first in range(0, len(some), _LOGS):
            yield {place: places[place] for place in some[first : first + _LOGS]}


def _demand(reply: Reply) -> None:
    """Raises what Valkey refused: without it there is no going on."""
    if isinstance(reply, ResponseError):
        raise reply
