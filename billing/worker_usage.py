"""Keeps what workers counted, and how far each worker's journal was read. No Django here.

A record the database refuses for its content (a tenant it does not know, say after it was restored) is logged
and left out: it must not hold up the others, nor fill the worker's disk.

A position counts only together with the records before it, so both are stored in one transaction: after a
crash the same records are asked for again, and storing them again changes nothing.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import tuple_row

from gpuworker.wire.messages import UsageCheckpoint

# Never back: of two replicas that had it the later one counts; of one, a final count stays, and of two
# running counts the later one does.
_STORE = """
INSERT INTO billing_workerusage AS kept (
    request_id, attempt, tenant_id, gateway, worker, worker_incarnation, model, digest, klass,
    prompt_tokens, cached_tokens, output_tokens, reason, at_ms, moves
) VALUES (
    %(request_id)s, %(attempt)s, %(tenant_id)s, %(gateway)s, %(worker)s, %(worker_incarnation)s, %(model)s,
    %(digest)s, %(klass)s, %(prompt_tokens)s, %(cached_tokens)s, %(output_tokens)s, %(reason)s, %(at_ms)s,
    %(moves)s
)
ON CONFLICT (request_id, attempt) DO UPDATE SET
    worker = EXCLUDED.worker, worker_incarnation = EXCLUDED.worker_incarnation, moves = EXCLUDED.moves,
    prompt_tokens = EXCLUDED.prompt_tokens, cached_tokens = EXCLUDED.cached_tokens,
    output_tokens = EXCLUDED.output_tokens, reason = EXCLUDED.reason, at_ms = EXCLUDED.at_ms,
    collected_at = now()
WHERE EXCLUDED.moves > kept.moves OR EXCLUDED.moves = kept.moves
  AND kept.reason = '' AND (EXCLUDED.reason <> '' OR EXCLUDED.output_tokens >= kept.output_tokens)
"""

_CURSOR_STORE = """
INSERT INTO billing_collectcursor (worker, journal, position) VALUES (%s, %s, %s)
ON CONFLICT (worker) DO UPDATE
SET journal = EXCLUDED.journal, position = EXCLUDED.position, updated_at = now()
"""

_CONTENT_ERRORS = (psycopg.DataError, psycopg.IntegrityError, ValueError)

logger = logging.getLogger(__name__)


class Cursor(NamedTuple):
    """How far a worker's journal was collected; positions of another journal mean nothing."""

    journal: str
    position: int


async def cursor_load(conn: psycopg.AsyncConnection[Any], worker: str) -> Cursor:
    """Where the next collection from this worker starts; ("", 0) when it was never collected from."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(
            "SELECT journal, position FROM billing_collectcursor WHERE worker = %s", (worker,)
        )
        row = await cursor.fetchone()
    return Cursor(*row) if row else Cursor("", 0)


async def worker_usage_store(
    conn: psycopg.AsyncConnection[Any], worker: str, checkpoints: Sequence[UsageCheckpoint], reached: Cursor
) -> None:
    """`checkpoints` in journal order, which end at `reached`. Needs the operators' role."""
    # A worker that had a request twice may end the first time after it began the second.
    latest = {(record.request_id, record.attempt): record for record in sorted(checkpoints, key=_moves)}
    # One order for every controller: two that store the same records wait, they never deadlock.
    async with conn.transaction():
        await _store(conn, [latest[key] for key in sorted(latest)])
        await conn.execute(_CURSOR_STORE, (worker, *reached))


async def _store(conn: psycopg.AsyncConnection[Any], records: Sequence[UsageCheckpoint]) -> None:
    try:
        async with conn.transaction(), conn.cursor() as cursor:
            await cursor.executemany(_STORE, [_row(record) for record in records])
            await cursor.execute(
                "SET CONSTRAINTS ALL IMMEDIATE"
            )  # foreign keys are looked at here, not later
    except _CONTENT_ERRORS as error:
        if len(records) == 1:
            logger.error("worker usage is refused and left out: %s: %s", records[0], error)
            return
        for record in records:
            await _store(conn, [record])


def _moves(record: UsageCheckpoint) -> int:
    return record.moves


def _row(record: UsageCheckpoint) -> dict[str, Any]:
    return msgspec.structs.asdict(record) | {
        "request_id": UUID(record.request_id),
        "tenant_id": UUID(record.tenant),
    }
