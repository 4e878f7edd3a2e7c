"""Two tenants and a priced model, and how tests look at their rows."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from billing.contracts import UsageRecord
from billing.models import Price
from billing.services import price_publish
from tenants.scoping import operator_scope
from tests.billing.records import usage
from tests.conftest import Database

LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Shop:
    """Tenants `a` and `b`; model `m` costs 1, 0.5 and 2 dollars per million prompt, cached, output tokens."""

    database: Database
    a: UUID
    b: UUID

    def usage(self, number: int = 1, **changes: object) -> UsageRecord:
        return usage(number, **({"tenant_id": str(self.a)} | changes))


def price(*, model: str, prompt: int = 1_000_000, effective_from: datetime | None = LONG_AGO) -> Price:
    with operator_scope():
        return price_publish(
            model=model,
            prompt_micro_usd_per_mtok=prompt,
            cached_micro_usd_per_mtok=500_000,
            output_micro_usd_per_mtok=2_000_000,
            effective_from=effective_from,
            actor="test",
        )


async def rows(conn: psycopg.AsyncConnection[Any], query: str, *parameters: object) -> list[tuple[Any, ...]]:
    cursor = await conn.execute(query, parameters or None)
    return await cursor.fetchall()
