"""Keys, quotas, routes and prices in memory: loaded from PostgreSQL, reloaded on NOTIFY and every 30 s.

Twice a second one number is asked for: so a connection that died without a word is noticed, and a route that
changed without a notice. While PostgreSQL is away the last snapshot keeps serving; `loaded_at` says how old
it is. Routes never go back to an older revision.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from billing.contracts import Price
from billing.prices import prices_load
from modelsvc.contracts import ModelRoute
from modelsvc.routes import routes_load, routes_merge, routes_revision
from tenants.contracts import KeyGrant
from tenants.data_keys import DataKeyUnreadable
from tenants.grants import SNAPSHOT_CHANNEL, grants_load

RELOAD_S = 30.0
CHECK_S = 0.5
_CHECK_TIMEOUT_S = 2.0  # then another connection is made
_LOAD_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5
_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    grants: dict[str, KeyGrant]  # by public id
    routes: dict[str, ModelRoute]  # by slug
    loaded_at: float  # monotonic
    prices: Mapping[str, Price] = field(default_factory=dict)  # by slug: what counts now


class SnapshotFeed:
    """`current` is None until the first load. `on_change` runs in the event loop after each load."""

    def __init__(
        self, database_url: str, master_keys: Sequence[bytes], on_change: Callable[[Snapshot], None]
    ) -> None:
        self._database_url = database_url
        self._master_keys = master_keys
        self._on_change = on_change
        self.current: Snapshot | None = None
        self.known_at = 0.0  # monotonic: since then no route may have changed unseen

    async def run(self) -> None:
        """Until cancelled."""
        backoff_s = _MIN_BACKOFF_S
        while True:
            started = time.monotonic()
            try:
                await self._follow()
            except (psycopg.Error, OSError, TimeoutError) as error:
                logger.warning("snapshot: PostgreSQL is away, serving the last one: %s", error)
            except DataKeyUnreadable as error:
                logger.error("snapshot: serving the last one: %s", error)
            if self.current is not None and self.current.loaded_at > started:
                backoff_s = _MIN_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _follow(self) -> None:
        async with await psycopg.AsyncConnection.connect(
            self._database_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        ) as conn:
            # LISTEN before the first load: a change in between is announced and loaded again.
            await conn.execute(f"LISTEN {SNAPSHOT_CHANNEL}")
            while True:
                async with asyncio.timeout(_LOAD_TIMEOUT_S):
                    revision = await routes_revision(conn)  # before what it stands for
                    await self._load(conn)
                await self._changed(conn, revision)

    async def _changed(self, conn: psycopg.AsyncConnection[Any], revision: int) -> None:
        """Returns when there may be something new."""
        reload_at = time.monotonic() + RELOAD_S
        while time.monotonic() < reload_at:
            async for _ in conn.notifies(timeout=CHECK_S, stop_after=1):
                return
            asked_at = time.monotonic()
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                if await routes_revision(conn) != revision:
                    return
            self.known_at = asked_at

    async def _load(self, conn: psycopg.AsyncConnection[Any]) -> None:
        asked_at = time.monotonic()
        grants = await grants_load(conn, self._master_keys)
        routes = await routes_load(conn)
        prices = await prices_load(conn)
        self.current = Snapshot(
            grants={grant.public_id: grant for grant in grants},
            routes=routes_merge(self.current.routes if self.current else {}, routes),
            loaded_at=time.monotonic(),
            prices={price.model: price for price in prices},
        )
        self.known_at = asked_at
        self._on_change(self.current)
