"""Reads of billing: what a tenant used, and whether usage, ledger and workers' counts agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Count, Sum
from django.utils import timezone

from billing.models import Price, UsageEvent
from gpuworker.wire.messages import CHECKPOINT_TOKENS
from tenants.scoping import alias_current, tenant_scope

# A final count may reach us this long before the gateway's spool brings the usage event.
SPOOL_GRACE_S = 60

_LEDGER_SUM = """
SELECT sum(amount_micro_usd) FROM billing_ledgerentry WHERE created_at >= %(since)s
HAVING coalesce(sum(amount_micro_usd), 0) <> 0
"""

# Both rows of a pair are written in one transaction, so `now()` put both on the same side of `since`.
_USAGE_WITHOUT_PAIR = """
WITH entries AS (
    SELECT request_id, attempt,
           sum(amount_micro_usd) FILTER (WHERE account LIKE 'tenant:%%:receivable') AS receivable,
           sum(amount_micro_usd) FILTER (WHERE account = 'revenue:inference') AS revenue
    FROM billing_ledgerentry WHERE created_at >= %(since)s GROUP BY request_id, attempt
), usage AS (
    SELECT request_id, attempt, cost_micro_usd FROM billing_usageevent WHERE recorded_at >= %(since)s
)
SELECT request_id, attempt, coalesce(cost_micro_usd, 0), coalesce(receivable, 0), coalesce(revenue, 0)
FROM usage FULL JOIN entries USING (request_id, attempt)
WHERE coalesce(receivable, 0) <> coalesce(cost_micro_usd, 0)
   OR coalesce(revenue, 0) <> -coalesce(cost_micro_usd, 0)
ORDER BY request_id, attempt LIMIT %(limit)s
"""

# Where the worker or the gateway failed, less was delivered or known than the worker counted in the end.
_WORKER_COUNTS = """
SELECT counted.request_id, counted.attempt,
       counted.prompt_tokens, counted.cached_tokens, counted.output_tokens,
       usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
FROM billing_workerusage AS counted LEFT JOIN billing_usageevent AS usage USING (request_id, attempt)
WHERE counted.collected_at >= %(since)s AND counted.reason <> '' AND CASE
    WHEN usage.request_id IS NULL THEN counted.collected_at < %(settled_before)s
    WHEN usage.outcome IN ('error', 'replica_lost') THEN usage.output_tokens > counted.output_tokens
    WHEN usage.prompt_tokens <> counted.prompt_tokens THEN true
    WHEN usage.cached_tokens <> counted.cached_tokens THEN true
    WHEN usage.outcome = 'gateway_lost'
        THEN counted.output_tokens - usage.output_tokens NOT BETWEEN 0 AND %(checkpoint_tokens)s
    ELSE usage.output_tokens <> counted.output_tokens
END
ORDER BY counted.request_id, counted.attempt LIMIT %(limit)s
"""

_MAX_DIFFERENCES = 1000


@dataclass(frozen=True, slots=True)
class UsageSum:
    """One tenant's usage of one model over a period. Requests count their attempts."""

    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_micro_usd: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Two numbers that had to be equal. `subject` is a request's attempt, or a whole account."""

    check: str
    subject: str
    expected: str
    found: str


def usage_sums(*, tenant_id: UUID, since: datetime, until: datetime) -> list[UsageSum]:
    """Per model, of the requests that occurred in [since, until)."""
    with tenant_scope(tenant_id):
        sums = (
            UsageEvent.objects.filter(occurred_at__gte=since, occurred_at__lt=until)
            .order_by("model")
            .values("model")
            .annotate(
                requests=Count("id"),
                prompt=Sum("prompt_tokens"),
                cached=Sum("cached_tokens"),
                output=Sum("output_tokens"),
                cost=Sum("cost_micro_usd"),
            )
        )
        return [
            UsageSum(row["model"], row["requests"], row["prompt"], row["cached"], row["output"], row["cost"])
            for row in sums
        ]


def price_current(*, model: str, at: datetime) -> Price | None:
    """The version that prices usage at this moment."""
    return Price.objects.filter(model=model, effective_from__lte=at).order_by("-effective_from").first()


def ledger_differences(*, since: datetime | None = None) -> list[Difference]:
    """Ledger rows that do not sum to zero; usage events whose pair is missing or wrong. Operators only."""
    totals = _rows(_LEDGER_SUM, since)
    unpaired = _rows(_USAGE_WITHOUT_PAIR, since)
    return [Difference("ledger sum", "all accounts", "0", str(total)) for (total,) in totals] + [
        Difference(
            "usage = ledger", f"{request_id}/{attempt}", f"{cost} and {-cost}", f"{receivable} and {revenue}"
        )
        for request_id, attempt, cost, receivable, revenue in unpaired
    ]


def worker_differences(*, since: datetime | None = None, grace_s: float = SPOOL_GRACE_S) -> list[Difference]:
    """Final worker counts that no usage event carries, or that one carries differently. Operators only."""
    return [
        Difference("worker = usage", f"{request_id}/{attempt}", _counts(counted), _counts(used))
        for request_id, attempt, *numbers in _rows(_WORKER_COUNTS, since, grace_s)
        for counted, used in [(numbers[:3], numbers[3:])]
    ]


def _counts(numbers: Sequence[int | None]) -> str:
    prompt, cached, output = numbers
    return "no usage event" if prompt is None else f"prompt {prompt}, cached {cached}, output {output}"


def _rows(query: str, since: datetime | None, grace_s: float = 0) -> list[tuple[Any, ...]]:
    parameters: dict[str, datetime | int] = {
        "since": since or datetime.min.replace(tzinfo=UTC),
        "settled_before": timezone.now() - timedelta(seconds=grace_s),
        "checkpoint_tokens": CHECKPOINT_TOKENS,
        "limit": _MAX_DIFFERENCES,
    }
    with connections[alias_current()].cursor() as cursor:
        cursor.execute(query, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
