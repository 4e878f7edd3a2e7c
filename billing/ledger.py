"""Writes usage records with their ledger pair, exactly once per (request_id, attempt). No Django here.

The gateway's spool and the reaper both come through here. The gateway's role may insert usage and ledger rows
only for the tenant named by `app.tenant_id`. Nothing is ever updated: see docs/billing.md.
"""

import hashlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import DictRow, TupleRow, dict_row, tuple_row

from billing.contracts import Price, UsageRecord
from billing.pricing import NOTHING_BILLED, Billed, billable_tokens, cost_micro_usd
from policy.ids import uuid7

REVENUE_ACCOUNT = "revenue:inference"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Both ledger legs or none hang on the usage row, and an event that costs nothing has no legs. `ON CONFLICT`
# covers two unique indexes: the key, and "one attempt of a request bills the prompt".
_INSERT = """
WITH usage AS (
    INSERT INTO billing_usageevent (
        request_id, attempt, tenant_id, key_id, model, digest, klass, worker, worker_incarnation, gateway,
        prompt_tokens, cached_tokens, output_tokens, outcome, occurred_at,
        billable_prompt_tokens, billable_cached_tokens, billable_output_tokens, price_version, cost_micro_usd,
        replica_attempts, lost_cause, recomputed_tokens
    ) VALUES (
        %(request_id)s, %(attempt)s, %(tenant_id)s, %(key_id)s, %(model)s, %(digest)s, %(klass)s, %(worker)s,
        %(worker_incarnation)s, %(gateway)s, %(prompt_tokens)s, %(cached_tokens)s, %(output_tokens)s,
        %(outcome)s, %(occurred_at)s, %(billable_prompt)s, %(billable_cached)s, %(billable_output)s,
        %(price_version)s, %(cost)s, %(replica_attempts)s, %(lost_cause)s, %(recomputed_tokens)s
    )
    ON CONFLICT DO NOTHING
    RETURNING request_id, attempt, tenant_id, cost_micro_usd
), ledger AS (
    INSERT INTO billing_ledgerentry (txn_id, request_id, attempt, tenant_id, account, amount_micro_usd)
    SELECT %(txn_id)s, request_id, attempt, tenant_id, leg.account, leg.sign * cost_micro_usd
    FROM usage, (VALUES (%(receivable)s, 1), (%(revenue)s, -1)) AS leg (account, sign)
    WHERE cost_micro_usd > 0
)
SELECT count(*) FROM usage
"""

# Two statements: what the second one reads is what was committed once the lock was had.
_REQUEST_LOCK = "SELECT pg_advisory_xact_lock(%s)"
_BILLED = """
SELECT coalesce(sum(billable_prompt_tokens + billable_cached_tokens), 0) > 0,
       coalesce(sum(billable_output_tokens), 0)
FROM billing_usageevent WHERE request_id = %s
"""

_EXISTING = """
SELECT request_id, attempt, tenant_id, key_id, model, digest, klass, worker,
       worker_incarnation, prompt_tokens, cached_tokens, output_tokens, outcome
FROM billing_usageevent WHERE request_id = %s AND attempt = %s
"""

_CONFLICT = """
INSERT INTO billing_usageconflict (request_id, attempt, tenant_id, record, fingerprint)
VALUES (%s, %s, %s, %s::jsonb, %s) ON CONFLICT DO NOTHING
"""

_PRICES = """
SELECT model, version, prompt_micro_usd_per_mtok, cached_micro_usd_per_mtok, output_micro_usd_per_mtok,
       effective_from
FROM billing_price WHERE model = ANY(%s) ORDER BY model, effective_from DESC
"""

logger = logging.getLogger(__name__)

PriceList = Mapping[str, Sequence[tuple[datetime, Price]]]


class PriceMissing(Exception):
    """No price of `models` is effective when their records occurred. Nothing was written: keep them."""

    def __init__(self, models: frozenset[str]) -> None:
        super().__init__(f"no effective price for {', '.join(sorted(models))}")
        self.models = models


async def usage_record(conn: psycopg.AsyncConnection[Any], records: Sequence[UsageRecord]) -> int:
    """Number of usage rows newly written; the others were there already, or went to the conflict table.

    All or nothing, in one transaction (a savepoint of the caller's, when one is open; `app.tenant_id` is then
    left empty). Safe to repeat and to run concurrently. Raises PriceMissing, or psycopg.Error.
    """
    # One order for every writer: two transactions that share keys wait for each other, they never deadlock.
    ordered = sorted(records, key=lambda record: (record.tenant_id, record.request_id, record.attempt))
    written = 0
    async with conn.transaction():
        prices = await _prices_load(conn, {record.model for record in ordered})
        priced = [(record, _price_at(prices, record)) for record in ordered]
        missing = frozenset(record.model for record, price in priced if price is None)
        if missing:
            raise PriceMissing(missing)
        for tenant_id, group in itertools.groupby(priced, key=lambda pair: pair[0].tenant_id):
            await _tenant_set(conn, tenant_id)
            for _, attempts in itertools.groupby(group, key=lambda pair: pair[0].request_id):
                written += await _attempts_write(conn, list(attempts))
        await _tenant_set(conn, "")
    return written


def transaction_id(request_id: UUID, attempt: int) -> UUID:
    """The ledger transaction of a usage event: a UUIDv7 with the request's time, repeatable."""
    digest = hashlib.sha256(request_id.bytes + attempt.to_bytes(8, "big")).digest()
    return uuid7(request_id.int >> 80, int.from_bytes(digest, "big") & ((1 << 74) - 1))


def receivable_account(tenant_id: UUID) -> str:
    return f"tenant:{tenant_id}:receivable"


async def _attempts_write(
    conn: psycopg.AsyncConnection[Any], attempts: Sequence[tuple[UsageRecord, Price | None]]
) -> int:
    """Attempts of one request, as far as this batch has them.

    Who bills takes turns: those who would bill the prompt at its unique index, others at the request's lock.
    Several attempts take the lock before they hold a row that others may wait for: nobody waits in a circle.
    A single one, nearly always the only one there is, takes it when it finds the prompt billed.
    """
    written = 0
    for record, price in attempts:
        assert price is not None
        written += await _record_write(conn, record, price, is_alone=len(attempts) == 1)
    return written


async def _record_write(
    conn: psycopg.AsyncConnection[Any], record: UsageRecord, price: Price, *, is_alone: bool
) -> bool:
    request_id = UUID(record.request_id)
    billed = NOTHING_BILLED
    async with conn.cursor(row_factory=dict_row) as cursor:
        for is_again in (False, True):
            if is_again or not is_alone:
                billed = await _billed(conn, request_id)
            if is_again:  # the prompt is billed, be it by a row that is not ours to see
                billed = billed._replace(prompt=True)
            row = _row(record, price, billed)
            await cursor.execute(_INSERT, row)
            inserted = await cursor.fetchone()
            if inserted is not None and inserted["count"]:
                return True
            await cursor.execute(_EXISTING, (request_id, record.attempt))
            existing = await cursor.fetchone()
            if existing is not None:
                if not _says_the_same(existing, row):
                    await _conflict_write(cursor, record)
                return False
            # The key is free, so another attempt of this request billed the prompt meanwhile.
        # Neither free nor visible: the key belongs to a row of another tenant.
        await _conflict_write(cursor, record)
    return False


async def _billed(conn: psycopg.AsyncConnection[Any], request_id: UUID) -> Billed:
    """By other attempts, none of which is billed by anybody else before this transaction ends."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        # 64 random bits of the id, signed.
        await cursor.execute(_REQUEST_LOCK, (int.from_bytes(request_id.bytes[8:], "big", signed=True),))
        await cursor.execute(_BILLED, (request_id,))
        row = await cursor.fetchone()
    assert row is not None
    return Billed(*row)


def _row(record: UsageRecord, price: Price, billed: Billed) -> dict[str, Any]:
    request_id, tenant_id = UUID(record.request_id), UUID(record.tenant_id)
    billable = billable_tokens(record, billed)
    return msgspec.structs.asdict(record) | {
        "request_id": request_id,
        "tenant_id": tenant_id,
        "key_id": UUID(record.key_id) if record.key_id else None,
        "occurred_at": _occurred_at(record),
        "billable_prompt": billable.prompt,
        "billable_cached": billable.cached,
        "billable_output": billable.output,
        "price_version": price.version,
        "cost": cost_micro_usd(price, *billable),
        "txn_id": transaction_id(request_id, record.attempt),
        "receivable": receivable_account(tenant_id),
        "revenue": REVENUE_ACCOUNT,
    }


def _says_the_same(existing: DictRow, row: DictRow) -> bool:
    """Who wrote it and when may differ, and the reaper does not know the key; the rest must agree."""
    return all(
        value == row[name] or (name == "key_id" and None in (value, row[name]))
        for name, value in existing.items()
    )


async def _conflict_write(cursor: psycopg.AsyncCursor[DictRow], record: UsageRecord) -> None:
    logger.error("usage conflict: %s attempt %d was recorded differently", record.request_id, record.attempt)
    document = msgspec.json.encode(record)
    fingerprint = hashlib.sha256(document).digest()
    await cursor.execute(
        _CONFLICT,
        (UUID(record.request_id), record.attempt, UUID(record.tenant_id), document.decode(), fingerprint),
    )


async def _tenant_set(conn: psycopg.AsyncConnection[Any], tenant_id: str) -> None:
    await conn.execute("SELECT set_config('app.tenant_id', %s, true)", (tenant_id,))


async def _prices_load(conn: psycopg.AsyncConnection[Any], models: set[str]) -> PriceList:
    prices: dict[str, list[tuple[datetime, Price]]] = {}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_PRICES, (list(models),))
        rows: list[TupleRow] = await cursor.fetchall()
    for model, version, prompt, cached, output, effective_from in rows:
        price = Price(
            version=version,
            model=model,
            prompt_micro_usd_per_mtok=prompt,
            cached_micro_usd_per_mtok=cached,
            output_micro_usd_per_mtok=output,
        )
        prices.setdefault(model, []).append((effective_from, price))
    return prices


def _price_at(prices: PriceList, record: UsageRecord) -> Price | None:
    """The newest version whose `effective_from` is not after the record."""
    occurred_at = _occurred_at(record)
    return next((price for since, price in prices.get(record.model, ()) if since <= occurred_at), None)


def _occurred_at(record: UsageRecord) -> datetime:
    return _EPOCH + timedelta(milliseconds=record.occurred_at_ms)
