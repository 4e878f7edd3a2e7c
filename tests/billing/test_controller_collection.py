"""The controller collects every worker's journal, across restarts, replaced disks and lost connections."""

from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.billing.peers import ScriptedWorker
from tests.billing.records import request_id
from tests.billing.shop import Shop, rows
from tests.billing.stage import Stage

Connection = psycopg.AsyncConnection[Any]


async def test_a_restarted_worker_is_collected_from_where_its_journal_was_left(
    stage: Stage, operator: Connection
) -> None:
    stage.worker.journal += [stage.checkpoint(1, 0), stage.checkpoint(1, 5, reason="stop")]
    async with stage.controller():
        await stage.pass_time(1, ["gone"])
        await stage.worker.collected()
        # when: the process is replaced, in the same folder, and goes on writing
        await stage.worker.stop()
        reborn = ScriptedWorker(stage.folder / "worker.sock")
        reborn.journal = [*stage.worker.journal, stage.checkpoint(2, 0)]
        await reborn.start()
        await stage.pass_time(1, ["gone"], workers=[reborn])
        await reborn.collected()
        await reborn.stop()
    # then: it was asked for the new record only
    assert min(reborn.asked) == 20
    assert await rows(
        operator, "SELECT request_id, output_tokens, reason FROM billing_workerusage ORDER BY 1"
    ) == [(request_id(1), 5, "stop"), (request_id(2), 0, "")]
    assert await rows(operator, "SELECT worker, position FROM billing_collectcursor") == [("worker-0", 30)]
    await stage.worker.start()  # for the fixture to stop


async def test_a_replaced_journal_is_read_from_its_start(stage: Stage, operator: Connection) -> None:
    stage.worker.journal += [stage.checkpoint(number, 5, reason="stop") for number in (1, 2, 3)]
    async with stage.controller():
        await stage.pass_time(1, ["gone"])
        await stage.worker.collected()
        # A new disk, already longer than what the old one was collected up to
        stage.worker.journal_id = "journal-2"
        stage.worker.journal = [stage.checkpoint(number, 5, reason="stop") for number in (6, 7, 8, 9)]
        await stage.worker.collected()
    assert await rows(operator, "SELECT count(*) FROM billing_workerusage") == [(7,)]


@pytest.mark.parametrize(
    "wrong", [{"tenant": str(UUID(int=1 << 127))}, {"request_id": "x"}, {"klass": "k" * 17}]
)
async def test_a_record_that_cannot_be_stored_holds_up_no_other(
    stage: Stage, operator: Connection, wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    stage.worker.journal += [stage.checkpoint(number, 5, reason="stop") for number in (1, 2)]
    stage.worker.journal.insert(1, stage.checkpoint(9, 5, reason="stop", **wrong))
    async with stage.controller():
        await stage.pass_time(1, ["gone"])
        await stage.worker.collected()
    assert await rows(operator, "SELECT request_id FROM billing_workerusage ORDER BY 1") == [
        (request_id(1),),
        (request_id(2),),
    ]
    assert await rows(operator, "SELECT position FROM billing_collectcursor") == [(30,)]
    assert [line for line in caplog.messages if line.startswith("worker usage is refused")]


async def test_another_process_at_the_workers_address_is_not_asked(
    stage: Stage, operator: Connection
) -> None:
    known = stage.worker.view()
    stage.worker.incarnation = "newer"  # the dispatcher's view lags behind
    stage.worker.journal += [stage.checkpoint(1, 5, reason="stop")]
    async with stage.controller():
        stage.dispatcher.tell([known], [])
        await stage.worker.greeted(3)
        assert stage.worker.asked == []
        stage.dispatcher.tell([stage.worker.view()], [])
        await stage.worker.collected()


async def test_journal_longer_than_a_batch_is_collected_without_a_pause(
    stage: Stage, operator: Connection
) -> None:
    stage.worker.journal += [stage.checkpoint(number, 5, reason="stop") for number in range(1, 2501)]
    async with stage.controller():
        await stage.pass_time(1, ["gone"])
        await stage.worker.collected()
    assert stage.worker.asked[:4] == [0, 10_000, 20_000, 25_000]
    assert await rows(operator, "SELECT count(*) FROM billing_workerusage") == [(2500,)]


async def test_lost_peers_and_connections_are_tried_again_without_harm_to_the_others(
    stage: Stage, operator: Connection, shop: Shop
) -> None:
    dead = ScriptedWorker(stage.folder / "dead.sock", "worker-1")  # in the fleet's view, never listening
    stage.worker.journal += [stage.checkpoint(1, 0)]
    async with stage.controller():
        await stage.pass_time(1, ["gone"], workers=[stage.worker, dead])
        await stage.worker.collected()

        # when: the dispatcher is replaced, and PostgreSQL drops every connection of the controller
        await stage.dispatcher.stop()
        async with await psycopg.AsyncConnection.connect(shop.database.admin_url, autocommit=True) as admin:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'controller'"
            )
        stage.worker.journal += [stage.checkpoint(1, 9, reason="stop")]
        await stage.dispatcher.start()
        await stage.dispatcher.joined()

        # then: all goes on
        await stage.pass_time(1, ["gone"], workers=[stage.worker, dead])
        await stage.worker.collected()
    assert await rows(operator, "SELECT output_tokens, reason FROM billing_workerusage") == [(9, "stop")]
