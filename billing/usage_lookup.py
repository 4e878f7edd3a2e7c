"""A tenant's own usage rows of one request, as the gateway shows them. No Django here."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

MAX_ROWS: Final = 1024

# One range of the unique index; ids are compared as 128-bit numbers.
_FIND = """
SELECT request_id, attempt, model, digest, klass, outcome, prompt_tokens, cached_tokens, output_tokens,
       billable_prompt_tokens, billable_cached_tokens, billable_output_tokens, cost_micro_usd, occurred_at
FROM billing_usageevent
WHERE tenant_id = %s AND request_id BETWEEN %s AND %s
ORDER BY request_id, attempt LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One attempt. `prompt_tokens` includes the cached ones; the billable counts are disjoint."""

    request_id: UUID
    attempt: int
    model: str
    digest: str
    klass: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    billable_prompt_tokens: int
    billable_cached_tokens: int
    billable_output_tokens: int
    cost_micro_usd: int
    occurred_at: datetime


async def usage_find(
    conn: psycopg.AsyncConnection[Any], tenant_id: UUID, request_id: UUID, prompts: int = 128
) -> list[UsageRow]:
    """Every attempt of `request_id` and of the ids after it that its further prompts have; at most 1024 rows.

    Empty while nothing is recorded, or when the request is another tenant's. Raises psycopg.Error.
    """
    last = UUID(int=min(request_id.int + prompts - 1, (1 << 128) - 1))
    async with conn.transaction(), conn.cursor(row_factory=class_row(UsageRow)) as cursor:
        await cursor.execute("SELECT set_config('app.tenant_id', %s, true)", (str(tenant_id),))
        await cursor.execute(_FIND, (tenant_id, request_id, last, MAX_ROWS))
        return await cursor.fetchall()
