"""Bills what a dead gateway left: decides which worker counts become usage events, and writes them.

Under-bills by at most the tokens since the last checkpoint, never over-bills, and never bills a row twice or
while its gateway lives (the gateway's own record is the better one). No Django here.
"""

import logging
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from billing.contracts import UsageRecord
from billing.ledger import PriceMissing, usage_record
from billing.presence import Presence

_OUTCOME_OF_REASON = {
    "stop": "completed",
    "length": "completed",
    "cancelled": "cancelled",
    "deadline": "deadline",
    "error": "error",
}

_LEADER_LOCK = 0x534C_5543_0001  # one number per job that has a leader; this one is the reaper's

_SETTLE = """
UPDATE billing_workerusage AS worker_usage SET settled = true
FROM billing_usageevent AS usage
WHERE NOT worker_usage.settled
  AND usage.request_id = worker_usage.request_id AND usage.attempt = worker_usage.attempt
"""

_UNSETTLED = """
SELECT request_id, attempt, tenant_id, gateway, worker, worker_incarnation, model, digest, klass,
       prompt_tokens, cached_tokens, output_tokens, reason, at_ms, moves
FROM billing_workerusage WHERE NOT settled AND gateway <> ALL(%s)
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUsageRow:
    """Latest checkpoint of one row, as a worker counted it. `reason` is empty while the row is open."""

    request_id: UUID
    attempt: int
    tenant_id: UUID
    gateway: str
    worker: str
    worker_incarnation: str
    model: str
    digest: str
    klass: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reason: str
    at_ms: int
    moves: int = 0  # replicas that were lost with it before this one had it

    @property
    def key(self) -> tuple[UUID, int]:
        return self.request_id, self.attempt


def reap_decide(
    rows: Iterable[WorkerUsageRow],
    billed: Set[tuple[UUID, int]],
    gateways: Presence,
    workers: Presence,
    now_s: float,
) -> list[UsageRecord]:
    """Usage records for the rows that nobody else will bill any more. Pure."""
    taken = set(billed)
    records = []
    for row in rows:
        counting_ended = row.reason != "" or workers.is_gone(row.worker_incarnation, now_s)
        if row.key in taken or not counting_ended or not gateways.is_gone(row.gateway, now_s):
            continue
        taken.add(row.key)
        records.append(_record(row))
    return records


async def reap(
    conn: psycopg.AsyncConnection[Any], gateways: Presence, workers: Presence, now_s: float
) -> int:
    """Number of usage events written. Does nothing while another controller is at it."""
    async with conn.transaction():
        cursor = await conn.execute("SELECT pg_try_advisory_xact_lock(%s)", (_LEADER_LOCK,))
        leads = await cursor.fetchone()
        if leads is None or not leads[0]:
            return 0
        await conn.execute(_SETTLE)
        async with conn.cursor(row_factory=class_row(WorkerUsageRow)) as unsettled:
            await unsettled.execute(_UNSETTLED, (sorted(gateways.present),))
            rows = await unsettled.fetchall()
        return await _write(conn, reap_decide(rows, frozenset(), gateways, workers, now_s))


async def _write(conn: psycopg.AsyncConnection[Any], records: list[UsageRecord]) -> int:
    if not records:
        return 0
    try:
        return await usage_record(conn, records)
    except PriceMissing as missing:
        # The unpriced rows stay unsettled and come up again; the others need not wait for them.
        logger.error("reaper: %s", missing)
        return await usage_record(conn, [r for r in records if r.model not in missing.models])


def _record(row: WorkerUsageRow) -> UsageRecord:
    outcome = _OUTCOME_OF_REASON.get(row.reason, "gateway_lost")
    return UsageRecord(
        request_id=str(row.request_id),
        attempt=row.attempt,
        tenant_id=str(row.tenant_id),
        key_id=None,
        model=row.model,
        digest=row.digest,
        klass=row.klass,
        worker=row.worker,
        worker_incarnation=row.worker_incarnation,
        gateway=row.gateway,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        # After our own failure what was delivered bills, and only the dead gateway knew what that was.
        output_tokens=0 if outcome == "error" else row.output_tokens,
        outcome=outcome,
        occurred_at_ms=row.at_ms,
        replica_attempts=row.moves + 1,
    )
