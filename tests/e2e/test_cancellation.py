"""A client that leaves, in every state: the engine stops, blocks come free, one usage row says the rest."""

from typing import Any
from uuid import UUID

import pytest

from tests.e2e.caller import Caller
from tests.e2e.observe import eventually, fleet, is_idle, usage_row

pytestmark = pytest.mark.e2e

LONG_PROMPT = "All work and no play makes Jack a dull boy. " * 250  # about 3,000 tokens


def _request_ids(stack: Any) -> set[UUID]:
    import psycopg

    with psycopg.connect(stack.operator_url) as connection:
        return {row[0] for row in connection.execute("SELECT request_id FROM billing_usageevent")}


async def _new_rows(stack: Any, before: set[UUID], count: int) -> list[dict[str, Any]]:
    def check() -> set[UUID] | None:
        new = _request_ids(stack) - before
        return new if len(new) >= count else None

    new = await eventually(check, 30, f"{count} new usage rows")
    assert len(new) == count
    return [await usage_row(stack.operator_url, str(request_id)) for request_id in sorted(new)]


async def test_midstream(stack: Any) -> None:
    await eventually(lambda: is_idle(stack.redis_url))
    before, caller = _request_ids(stack), Caller(stack)
    await caller.post("Once upon a time", stream=True, max_tokens=2_000)
    await caller.read_events(10)
    await caller.leave()
    (row,) = await _new_rows(stack, before, 1)
    assert row["outcome"] == "cancelled"
    assert 8 <= row["output_tokens"] < 60
    assert row["cost_micro_usd"] > 0
    await eventually(lambda: is_idle(stack.redis_url), 5, "blocks coming free")


async def test_in_nonstream_mode(stack: Any) -> None:
    await eventually(lambda: is_idle(stack.redis_url))
    before, caller = _request_ids(stack), Caller(stack)
    await caller.post("Once upon a time", stream=False, max_tokens=2_000)
    await eventually(lambda: any(w["running"] for w in fleet(stack.redis_url)["workers"]))
    await caller.leave()
    (row,) = await _new_rows(stack, before, 1)
    assert row["outcome"] == "cancelled"
    assert row["output_tokens"] < 300
    await eventually(lambda: is_idle(stack.redis_url), 5, "blocks coming free")


async def test_while_prefilling_and_while_queued(stack: Any) -> None:
    """A few long prompts may be placed before the worker's report says it is busy; the others must wait."""
    await eventually(lambda: is_idle(stack.redis_url))
    before, callers = _request_ids(stack), [Caller(stack) for _ in range(8)]
    for caller in callers:
        await caller.post(LONG_PROMPT, stream=True, max_tokens=50)
    await eventually(lambda: any(q["depth"] >= 2 for q in fleet(stack.redis_url)["queues"]), 10, "a queue")
    for caller in callers:
        await caller.leave()
    rows = await _new_rows(stack, before, 8)
    assert {row["outcome"] for row in rows} == {"cancelled"}
    assert {row["output_tokens"] for row in rows} == {0}
    never_begun = [row for row in rows if row["prompt_tokens"] == 0]
    assert 2 <= len(never_begun) < len(rows)  # the others were being prefilled
    assert {row["cost_micro_usd"] for row in never_begun} == {0}
    await eventually(lambda: is_idle(stack.redis_url), 5, "blocks coming free")
    state = fleet(stack.redis_url)
    assert sum(q["depth"] for q in state["queues"]) == 0
