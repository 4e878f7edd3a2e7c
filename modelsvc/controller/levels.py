"""Watches how far each model's service is degraded: every change becomes an audit entry of the platform."""

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections

from gpuworker.wire.messages import FleetState
from modelsvc.controller.backoff import Backoff
from modelsvc.services import level_record
from tenants.scoping import operator_scope

MAX_PENDING = 1024

logger = logging.getLogger(__name__)


class ModelLevel(NamedTuple):
    """Of one model in one fleet state, its versions and classes together."""

    slug: str
    level: int
    at_ms: int
    queued: int
    oldest_ms: int


class LevelWatch:
    """Changes wait, in order, while PostgreSQL is away."""

    def __init__(self, actor: str) -> None:
        self._actor = actor
        self._levels: dict[str, int] = {}  # by model, in the latest state
        self._pending: deque[ModelLevel] = deque()
        self._arrived = asyncio.Event()

    def observe(self, state: FleetState) -> None:
        """A model that the state does not name any more is not degraded."""
        now = levels_of(state)
        gone = [ModelLevel(slug, 0, state.at_ms, 0, 0) for slug in self._levels if slug not in now]
        for seen in (*now.values(), *gone):
            if self._levels.get(seen.slug) != seen.level:
                self._enqueue(seen)
        self._levels = {slug: seen.level for slug, seen in now.items()}

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff("recording levels of degradation", logger)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._pending:
                change = self._pending.popleft()
                try:
                    await sync_to_async(self._record)(change)
                    backoff.succeeded()
                except (OperationalError, InterfaceError) as error:
                    self._pending.appendleft(change)
                    await backoff.failed(error)
                except (DatabaseError, ValueError) as error:  # a name that no column takes
                    logger.error("a change of level is refused: %s: %s", change, error)

    def _enqueue(self, change: ModelLevel) -> None:
        if len(self._pending) >= MAX_PENDING:
            logger.error("too many changes of level wait, one is lost: %s", self._pending.popleft())
        self._pending.append(change)
        self._arrived.set()

    def _record(self, change: ModelLevel) -> None:
        close_old_connections()
        try:
            with operator_scope():
                level_record(**change._asdict(), actor=self._actor)
        finally:
            close_old_connections()


def levels_of(state: FleetState) -> dict[str, ModelLevel]:
    levels: dict[str, ModelLevel] = {}
    for queue in state.queues:
        before = levels.get(queue.model, ModelLevel(queue.model, 0, state.at_ms, 0, 0))
        levels[queue.model] = before._replace(
            level=max(before.level, queue.level),
            queued=before.queued + queue.depth,
            oldest_ms=max(before.oldest_ms, queue.oldest_ms),
        )
    return levels
