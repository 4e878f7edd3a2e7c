"""The controller bills what a dead gateway left, once, and nothing that somebody else bills."""

from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from billing.ledger import usage_record
from tests.billing.records import request_id
from tests.billing.shop import rows
from tests.billing.stage import Stage

Connection = psycopg.AsyncConnection[Any]

USAGE = "SELECT request_id, attempt, outcome, output_tokens, gateway FROM billing_usageevent ORDER BY 1, 2"


async def wait_billed(billed: Connection) -> None:
    async for _ in billed.notifies(timeout=10, stop_after=1):
        return
    raise AssertionError("nothing was billed")


@pytest.mark.parametrize("controllers", [1, 2])
async def test_what_a_dead_gateway_left_is_billed_once(
    stage: Stage, operator: Connection, billed: Connection, controllers: int
) -> None:
    # given: a stream that ended, one whose gateway still lives, one open at 64 tokens
    stage.worker.journal += [
        stage.checkpoint(1, 0),
        stage.checkpoint(1, 64),
        stage.checkpoint(2, 64, gateway="alive", reason="length"),
        stage.checkpoint(3, 64),
        stage.checkpoint(1, 70, reason="gateway_lost"),
    ]
    async with AsyncExitStack() as stack:
        for _ in range(controllers):
            await stack.enter_async_context(stage.controller())
        # when: both gateways live for long, then one is gone for less than ten seconds
        await stage.pass_time(12, ["gone", "alive"])
        await stage.worker.collected(controllers)
        await stage.pass_time(9.5, ["alive"])
        await stage.reaper_rounds()
        # then: nothing is billed yet
        assert await rows(operator, USAGE) == []

        # when: it stays away
        await stage.pass_time(0.5, ["alive"])
        await wait_billed(billed)
        # then: the ended row is billed; the open one waits for its worker
        await stage.reaper_rounds()
        assert await rows(operator, USAGE) == [(request_id(1), 1, "gateway_lost", 70, "gone")]

        # when: the worker is gone, too
        await stage.pass_time(10, ["alive"], workers=[])
        await wait_billed(billed)
        await stage.reaper_rounds()
    # then: its last checkpoint is billed, each row once, by however many controllers
    assert await rows(operator, USAGE) == [
        (request_id(1), 1, "gateway_lost", 70, "gone"),
        (request_id(3), 1, "gateway_lost", 64, "gone"),
    ]
    assert await rows(operator, "SELECT count(*), sum(amount_micro_usd) FROM billing_ledgerentry") == [(4, 0)]
    assert await rows(operator, "SELECT count(*) FROM billing_usageconflict") == [(0,)]
    assert await rows(operator, "SELECT request_id FROM billing_workerusage WHERE NOT settled") == [
        (request_id(2),)
    ]


async def test_what_the_gateway_recorded_before_it_died_is_not_billed_again(
    stage: Stage, operator: Connection, gateway: Connection
) -> None:
    record = stage.shop.usage(1, output_tokens=70, gateway="gone")
    await usage_record(gateway, [record])
    stage.worker.journal += [stage.checkpoint(1, 70, reason="stop")]
    async with stage.controller():
        await stage.pass_time(1, [])
        await stage.worker.collected()
        await stage.pass_time(15, [])
        await stage.reaper_rounds()
    assert await rows(operator, USAGE) == [(request_id(1), 1, "completed", 70, "gone")]
    assert await rows(operator, "SELECT settled FROM billing_workerusage") == [(True,)]
    assert await rows(operator, "SELECT count(*) FROM billing_usageconflict") == [(0,)]
