"""Writes to billing that people or the schedule ask for. Usage and ledger rows: `billing.ledger` alone."""

from datetime import datetime

from django.db import connections, transaction
from django.db.models import Max, Min
from django.utils import timezone

from billing.models import Price
from tenants.audit import audit_write
from tenants.scoping import alias_current

_EXPIRE = """
DELETE FROM billing_idempotencyrecord WHERE id IN (
    SELECT id FROM billing_idempotencyrecord
    WHERE expires_at <= now() AND (state <> 'in_flight' OR lease_until < now())
    ORDER BY expires_at LIMIT %s
)
"""


class PriceBackdated(Exception):
    """The price would change what was already billed, or lie between versions that are published."""

    code = "price_backdated"


def price_publish(
    *,
    model: str,
    prompt_micro_usd_per_mtok: int,
    cached_micro_usd_per_mtok: int,
    output_micro_usd_per_mtok: int,
    actor: str,
    effective_from: datetime | None = None,
) -> Price:
    """The next version of a model's price, effective now or at a later moment. Operators only.

    It may also precede every other version: nothing was billed at such a moment, and usage that waits for a
    price of then can be. Raises PriceBackdated.
    """
    now = timezone.now()
    effective_from = effective_from or now
    alias = alias_current()
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:  # versions of one model are given out one at a time
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('price:' || %s, 0))", [model])
        version = price_version_next(model=model, effective_from=effective_from, now=now)
        price = Price.objects.create(
            model=model,
            version=version,
            prompt_micro_usd_per_mtok=prompt_micro_usd_per_mtok,
            cached_micro_usd_per_mtok=cached_micro_usd_per_mtok,
            output_micro_usd_per_mtok=output_micro_usd_per_mtok,
            effective_from=effective_from,
        )
        audit_write(
            tenant_id=None,
            actor=actor,
            action="price.publish",
            target=f"{model} v{price.version}",
            diff={
                "prompt_micro_usd_per_mtok": prompt_micro_usd_per_mtok,
                "cached_micro_usd_per_mtok": cached_micro_usd_per_mtok,
                "output_micro_usd_per_mtok": output_micro_usd_per_mtok,
                "effective_from": effective_from.isoformat(),
            },
        )
    return price


def price_version_next(*, model: str, effective_from: datetime, now: datetime) -> int:
    """The number a price from this moment would get. Raises PriceBackdated."""
    versions = Price.objects.filter(model=model).aggregate(
        newest=Max("version"), first=Min("effective_from"), last=Max("effective_from")
    )
    if versions["newest"] is None:
        return 1
    is_before_all = effective_from < versions["first"]
    is_after_all = effective_from >= now and effective_from > versions["last"]
    if not (is_before_all or is_after_all):
        raise PriceBackdated(
            f"the next price of {model} must start after now and after the last one"
            f" ({versions['last'].isoformat(timespec='seconds')}), or before the first"
            f" ({versions['first'].isoformat(timespec='seconds')})"
        )
    return int(versions["newest"]) + 1


def idempotency_expire(*, batch: int = 1000) -> int:
    """Delete the records whose day is over, in transactions of `batch` rows. How many there were.

    Operators only. One whose request still runs is left for the next time.
    """
    count = 0
    while True:
        with connections[alias_current()].cursor() as cursor:
            cursor.execute(_EXPIRE, [batch])
            deleted = int(cursor.rowcount)
            count += deleted
            if deleted < batch:
                return count
