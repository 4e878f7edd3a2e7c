"""What an e2e test looks at from outside: usage rows, the fleet state, processes."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import psycopg
import redis
from psycopg.rows import dict_row


async def eventually(check: Callable[[], Any], timeout_s: float = 20.0, what: str = "the condition") -> Any:
    """The first truthy result of `check`, asked ten times a second."""
    deadline = time.monotonic() + timeout_s
    while True:
        if result := await asyncio.to_thread(check):
            return result
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        await asyncio.sleep(0.1)


def usage_rows(operator_url: str, request_id: str) -> list[dict[str, Any]]:
    """As an operator sees them, with the sum of each row's ledger entries and the debit on the tenant."""
    with psycopg.connect(operator_url, row_factory=dict_row) as connection:
        return connection.execute(
            """SELECT u.*, (SELECT coalesce(sum(l.amount_micro_usd), 0) FROM billing_ledgerentry l
                            WHERE l.request_id = u.request_id AND l.attempt = u.attempt) AS ledger_sum,
                      (SELECT coalesce(sum(l.amount_micro_usd), 0) FROM billing_ledgerentry l
                       WHERE l.request_id = u.request_id AND l.attempt = u.attempt
                         AND l.account LIKE 'tenant:%%') AS charged
               FROM billing_usageevent u WHERE u.request_id = %s""",
            (request_id,),
        ).fetchall()


async def usage_row(operator_url: str, request_id: str) -> dict[str, Any]:
    """The one row of the request, once the spool has drained."""
    rows = await eventually(lambda: usage_rows(operator_url, request_id), 20, f"usage of {request_id}")
    assert len(rows) == 1, rows
    return dict(rows[0])


def fleet(redis_url: str) -> dict[str, Any]:
    """The latest fleet state, {} when nobody publishes it."""
    with redis.Redis.from_url(redis_url) as client, contextlib.suppress(TypeError):
        state: dict[str, Any] = json.loads(client.get("sluice:fleet"))
        return state
    return {}


def is_idle(redis_url: str) -> bool:
    """No replica holds a row or a block, nothing waits."""
    state = fleet(redis_url)
    return bool(state.get("workers")) and all(
        w["running"] == w["waiting"] == 0 and w["free_blocks"] == w["blocks"] for w in state["workers"]
    )
