"""Collects usage checkpoints from every worker's journal into the database.

The cursor belongs to the worker's id, not to its incarnation: the journal outlives the process. It names the
journal too, so that a replaced one is collected from its beginning. A record is acknowledged to the worker
(which then may delete it) only by a Collect after the transaction that stored it.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from billing.worker_usage import Cursor, cursor_load, worker_usage_store
from gpuworker.wire.messages import Collect, Collected, WorkerView
from gpuworker.wire.tls import WireTls
from modelsvc.controller.backoff import Backoff
from modelsvc.controller.peer import Peer, PeerLost, peer_open

COLLECT_INTERVAL_S = 1.0
ANSWER_TIMEOUT_S = 10.0
BATCH_RECORDS = 1000

Pool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]
Place = tuple[str, str, str]  # id, incarnation, address

logger = logging.getLogger(__name__)


class UsageCollector:
    """One task per worker in the fleet's view; `workers_set` starts and ends them."""

    def __init__(
        self,
        pool: Pool,
        group: asyncio.TaskGroup,
        *,
        name: str,
        incarnation: str,
        secret: str,
        tls: WireTls | None = None,
        interval_s: float = COLLECT_INTERVAL_S,
    ) -> None:
        self._pool = pool
        self._group = group
        self._greeting = {"name": name, "incarnation": incarnation, "secret": secret}
        self._tls = tls
        self._interval_s = interval_s
        self._tasks: dict[Place, asyncio.Task[None]] = {}

    def workers_set(self, workers: Iterable[WorkerView]) -> None:
        wanted = {(worker.id, worker.incarnation, worker.address) for worker in workers}
        for place in [place for place in self._tasks if place not in wanted]:
            self._tasks.pop(place).cancel()
        for place in wanted - self._tasks.keys():
            self._tasks[place] = self._group.create_task(self._collect_from(place))

    async def _collect_from(self, place: Place) -> None:
        worker, incarnation, address = place
        backoff = Backoff(f"collecting usage from {worker}", logger)
        # Not `while True`: asyncio.wait_for (psycopg uses it) may swallow a cancellation on Python 3.11.
        while place in self._tasks:
            try:
                async with peer_open(address, **self._greeting, tls=self._tls) as peer:
                    if peer.incarnation != incarnation:
                        raise PeerLost(f"{address} is another process than the dispatcher knows")
                    while place in self._tasks:
                        more = await self._collect_once(peer, worker)
                        backoff.succeeded()
                        if not more:
                            await asyncio.sleep(self._interval_s)
            except (PeerLost, psycopg.Error) as error:
                await backoff.failed(error)

    async def _collect_once(self, peer: Peer, worker: str) -> bool:
        """Whether the journal holds more. The cursor is read each time: another controller may move it."""
        async with self._pool.connection() as conn:
            cursor = await cursor_load(conn, worker)
        answer = await _ask(peer, cursor)
        reached = Cursor(answer.journal, answer.position)
        if reached == cursor:
            return False
        if cursor.journal and reached.journal != cursor.journal:
            logger.error(
                "%s has a new journal; what its old one held after %d is lost", worker, cursor.position
            )
        async with self._pool.connection() as conn:
            await worker_usage_store(conn, worker, answer.records, reached)
        return answer.more


async def _ask(peer: Peer, cursor: Cursor) -> Collected:
    peer.send(Collect(journal=cursor.journal, after=cursor.position, limit=BATCH_RECORDS))
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await peer.receive()
    except TimeoutError as error:
        raise PeerLost("no answer to Collect") from error
    if not isinstance(answer, Collected):
        raise PeerLost(f"answered Collect with {type(answer).__name__}")
    return answer
