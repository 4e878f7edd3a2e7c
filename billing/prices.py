"""The prices that count now, as the gateway reads them on its own connection. No Django here."""

from typing import Any

import psycopg
from psycopg.rows import class_row

from billing.contracts import Price

_CURRENT = """
SELECT DISTINCT ON (model)
       version, model, prompt_micro_usd_per_mtok, cached_micro_usd_per_mtok, output_micro_usd_per_mtok
FROM billing_price WHERE effective_from <= now() ORDER BY model, effective_from DESC
"""


async def prices_load(conn: psycopg.AsyncConnection[Any]) -> list[Price]:
    """The version of each model's price that is effective now. Raises psycopg.Error."""
    async with conn.cursor(row_factory=class_row(Price)) as cursor:
        await cursor.execute(_CURRENT)
        return await cursor.fetchall()
