"""Every change of a model's level of degradation is one audit entry, however many controllers watch."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from asgiref.sync import sync_to_async
from psycopg import sql

from devservices.postgres import PostgresServer
from gpuworker.wire.messages import FleetState, QueueView
from modelsvc.controller.levels import MAX_PENDING, LevelWatch
from modelsvc.services import LEVEL_ACTION
from tenants.audit import audit_verify
from tenants.models import AuditEntry
from tenants.scoping import operator_scope
from tests.billing.stage import Stage
from tests.conftest import Database

AT_MS = 1_760_000_000_000


def state(seq: int, **levels: int) -> FleetState:
    """Of models with a queue of each class."""
    return FleetState(
        seq=seq,
        at_ms=AT_MS + seq,
        workers=[],
        queues=[
            QueueView(model=model, klass=klass, depth=depth, oldest_ms=10 * depth, level=level)
            for model, level in levels.items()
            for klass, depth in (("interactive", 4), ("batch", 3))
        ],
        gateways=[],
        submitted=0,
        refused=0,
        tokens_per_s=0.0,
    )


def entries() -> list[AuditEntry]:
    with operator_scope():
        assert audit_verify(tenant_id=None) is None
        return list(AuditEntry.unscoped.filter(action=LEVEL_ACTION).order_by("sequence"))


async def changes(count: int) -> list[tuple[str, int, int]]:
    """Waits for that many entries, and a little for one too many."""
    async with asyncio.timeout(10):
        while len(await sync_to_async(entries)()) < count:  # noqa: ASYNC110 (PostgreSQL tells nobody)
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    told = [(entry.target, json.loads(entry.diff)) for entry in await sync_to_async(entries)()]
    return [(model, diff["before"], diff["after"]) for model, diff in told]


@asynccontextmanager
async def watching(name: str = "controller") -> AsyncIterator[LevelWatch]:
    watch = LevelWatch(name)
    running = asyncio.create_task(watch.run())
    yield watch
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_each_change_is_an_entry_of_the_platform_and_says_why(database: Database) -> None:
    async with watching() as watch:
        for seq, levels in enumerate(
            ({"m": 0, "n": 0}, {"m": 2, "n": 0}, {"m": 2, "n": 1}, {"m": 1, "n": 1})
        ):
            watch.observe(state(seq, **levels))
        assert await changes(3) == [("m", 0, 2), ("n", 0, 1), ("m", 2, 1)]
    first = (await sync_to_async(entries)())[0]
    assert (first.tenant_id, first.actor) == (None, "controller")
    assert json.loads(first.diff) == {
        "before": 0,
        "after": 2,
        "at_ms": AT_MS + 1,
        "queued": 7,
        "oldest_ms": 40,
    }


async def test_a_model_that_is_gone_from_the_fleet_is_not_degraded(database: Database) -> None:
    async with watching() as watch:
        watch.observe(state(1, m=3))
        watch.observe(state(2))
        watch.observe(state(3))
        assert await changes(2) == [("m", 0, 3), ("m", 3, 0)]


async def test_versions_of_a_model_count_by_the_worst(database: Database) -> None:
    async with watching() as watch:
        both = [*state(1, m=1).queues, *state(1, m=4).queues, *state(1, m=0).queues]
        watch.observe(FleetState(1, AT_MS, [], both, [], 0, 0, 0.0))
        assert await changes(1) == [("m", 0, 4)]


async def test_several_controllers_tell_a_change_once_and_a_late_one_none_again(database: Database) -> None:
    states = [state(seq, m=level) for seq, level in enumerate((0, 1, 0, 2))]
    async with watching("one") as one, watching("other") as other:
        for seen in states:
            one.observe(seen)
            other.observe(seen)
        told = [("m", 0, 1), ("m", 1, 0), ("m", 0, 2)]
        assert await changes(3) == told
        # when: one that was cut off catches up, and one is started anew
        async with watching("late") as late, watching("new") as new:
            for seen in states:
                late.observe(seen)
            new.observe(state(9, m=2))
            assert await changes(3) == told
            new.observe(state(10, m=0))
            assert await changes(4) == [*told, ("m", 2, 0)]


async def test_a_clock_that_was_ahead_and_is_set_right_silences_nothing(database: Database) -> None:
    ahead = int(time.time() * 1000) + 3_600_000 - AT_MS
    async with watching() as watch:
        watch.observe(state(ahead, m=1))
        watch.observe(state(2, m=0))
        watch.observe(state(3, m=2))
        assert await changes(3) == [("m", 0, 1), ("m", 1, 0), ("m", 0, 2)]


async def test_changes_wait_while_postgresql_is_away(database: Database, postgres: PostgresServer) -> None:
    away = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format
    name = sql.Identifier(database.name)
    async with (
        await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as admin,
        watching() as watch,
    ):
        watch.observe(state(1, m=1))
        await changes(1)
        await admin.execute(away(name, sql.SQL("false")))
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database.name]
        )
        for seq, level in enumerate((2, 1, 0), 2):
            watch.observe(state(seq, m=level))
        await asyncio.sleep(0.3)
        await admin.execute(away(name, sql.SQL("true")))
        assert await changes(4) == [("m", 0, 1), ("m", 1, 2), ("m", 2, 1), ("m", 1, 0)]


async def test_what_no_column_takes_holds_up_no_other(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching() as watch:
        watch.observe(state(1, **{"m" * 300: 1, "nul\0": 1, "n": 1}))
        assert await changes(1) == [("n", 0, 1)]
    assert len([line for line in caplog.messages if "a change of level is refused" in line]) == 2


def test_what_waits_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    watch = LevelWatch("controller")
    for seq in range(MAX_PENDING + 3):
        watch.observe(state(seq, m=seq % 2))
    assert len([line for line in caplog.messages if "one is lost" in line]) == 3


async def test_the_controller_watches(stage: Stage) -> None:
    async with stage.controller(), stage.controller():
        for seq, level in ((1, 0), (2, 2)):
            for connection in stage.dispatcher.connections:
                connection.send(state(seq, m=level))
        assert await changes(1) == [("m", 0, 2)]
