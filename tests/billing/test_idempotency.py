"""Idempotency records: one runs, others attach or get what is stored; a dead owner is succeeded."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from billing import idempotency
from billing.idempotency import Claim, IdempotencyStore, Reused, Running, Stored, StoreUnavailable
from billing.services import idempotency_expire
from devservices.postgres import PostgresServer
from tenants.scoping import operator_scope
from tests.billing.shop import Shop, rows

SAME, OTHER = b"f" * 32, b"g" * 32
USAGE = {"prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 5}
StoreMake = Callable[..., IdempotencyStore]


@pytest.fixture
async def store(shop: Shop) -> AsyncIterator[StoreMake]:
    """Makes stores, one per gateway."""
    async with AsyncExitStack() as stack:

        def make(owner: str = "gateway-1", **options: Any) -> IdempotencyStore:
            made = IdempotencyStore(shop.database.gateway_url, owner, **options)
            stack.push_async_callback(made.close)
            return made

        yield make


async def administer(shop: Shop, statement: str) -> int:
    async with await psycopg.AsyncConnection.connect(shop.database.admin_url, autocommit=True) as conn:
        return (await conn.execute(statement)).rowcount


async def lease_end(shop: Shop) -> None:
    await administer(shop, "UPDATE billing_idempotencyrecord SET lease_until = now() - interval '1 s'")


async def claimed(store: IdempotencyStore, tenant: UUID, key: str = "k") -> Claim:
    claim = await store.claim(tenant, key, SAME, uuid4())
    assert isinstance(claim, Claim)
    return claim


async def test_the_first_runs_it_and_the_next_attaches(shop: Shop, store: StoreMake) -> None:
    one, two = store("gateway-1"), store("gateway-2")
    request_id = uuid4()
    assert await one.claim(shop.a, "k", SAME, request_id) == Claim(request_id, 1, 1)
    for gateway in (one, two):
        assert await gateway.claim(shop.a, "k", SAME, uuid4()) == Running(request_id, 1, "gateway-1")


async def test_a_finished_one_is_stored_with_its_answer(shop: Shop, store: StoreMake) -> None:
    one, two = store("gateway-1"), store("gateway-2")
    claim = await claimed(one, shop.a)
    assert await one.finish(shop.a, claim, status=200, answer=b"sealed\0", **USAGE)
    assert await two.claim(shop.a, "k", SAME, uuid4()) == Stored(
        claim.request_id, 1, 200, b"sealed\0", **USAGE
    )
    assert await one.finish(shop.a, claim, status=200, answer=b"sealed\0", **USAGE)  # said again: the same
    assert not await one.fail(shop.a, claim)  # nor undone


@pytest.mark.parametrize("answer", [None, bytes(idempotency.MAX_ANSWER_BYTES + 1)])
async def test_what_is_not_kept_leaves_status_and_usage(
    shop: Shop, store: StoreMake, answer: bytes | None
) -> None:
    one = store()
    claim = await claimed(one, shop.a)
    await one.finish(shop.a, claim, status=200, answer=answer, **USAGE)
    assert await one.claim(shop.a, "k", SAME, uuid4()) == Stored(claim.request_id, 1, 200, None, **USAGE)


@pytest.mark.parametrize("state", ["running", "done", "failed"])
async def test_another_request_under_the_key_is_told_apart(shop: Shop, store: StoreMake, state: str) -> None:
    one = store()
    claim = await claimed(one, shop.a)
    if state == "done":
        await one.finish(shop.a, claim, status=200, answer=b"x", **USAGE)
    if state == "failed":
        await one.fail(shop.a, claim)
    assert await one.claim(shop.a, "k", OTHER, uuid4()) == Reused()


async def test_a_failed_one_runs_again_under_the_same_request_id(shop: Shop, store: StoreMake) -> None:
    one, two = store("gateway-1"), store("gateway-2")
    claim = await claimed(one, shop.a)
    assert await one.fail(shop.a, claim)
    assert await two.claim(shop.a, "k", SAME, uuid4()) == Claim(claim.request_id, 2, 2)
    assert not await one.finish(shop.a, claim, status=200, answer=b"late", **USAGE)
    assert await one.claim(shop.a, "k", SAME, uuid4()) == Running(claim.request_id, 2, "gateway-2")


async def test_keys_of_two_tenants_do_not_meet(shop: Shop, store: StoreMake) -> None:
    one = store()
    first, second = await claimed(one, shop.a), await claimed(one, shop.b)
    assert (first.attempt, second.attempt) == (1, 1)
    assert not await one.finish(shop.b, first, status=200, answer=b"x", **USAGE)  # not its row to write


async def test_an_abandoned_one_is_taken_over_and_its_old_owner_is_refused(
    shop: Shop, store: StoreMake
) -> None:
    paused, successor = store("paused"), store("successor")
    old = await claimed(paused, shop.a)
    assert isinstance(await successor.claim(shop.a, "k", SAME, uuid4()), Running)
    await lease_end(shop)

    new = await successor.claim(shop.a, "k", SAME, uuid4())

    assert new == Claim(old.request_id, 2, 2)
    assert not await paused.finish(shop.a, old, status=200, answer=b"of the old one", **USAGE)
    assert not await paused.fail(shop.a, old)
    assert await successor.finish(shop.a, new, status=200, answer=b"of the new one", **USAGE)
    assert not await paused.finish(shop.a, old, status=200, answer=b"of the old one", **USAGE)
    stored = await paused.claim(shop.a, "k", SAME, uuid4())
    assert isinstance(stored, Stored)
    assert (stored.attempt, stored.answer) == (2, b"of the new one")


async def test_what_runs_here_is_not_started_again_here_when_its_lease_ran_out(
    shop: Shop, store: StoreMake
) -> None:
    """As after an outage of PostgreSQL, before the leases are renewed."""
    one = store()
    claim = await claimed(one, shop.a)
    await lease_end(shop)
    assert await one.claim(shop.a, "k", SAME, uuid4()) == Running(claim.request_id, 1, "gateway-1")
    assert await one.finish(shop.a, claim, status=200, answer=b"x", **USAGE)


async def test_of_many_at_once_exactly_one_runs(shop: Shop, store: StoreMake) -> None:
    stores = [store(f"gateway-{number}") for number in range(4)]
    for _ in range(5):
        found = await asyncio.gather(*(one.claim(shop.a, "k", SAME, uuid4()) for one in stores * 5))
        claims = [claim for claim in found if isinstance(claim, Claim)]
        assert len(claims) == 1
        assert {one.request_id for one in found if isinstance(one, Running)} == {claims[0].request_id}
        await lease_end(shop)  # and of many who would succeed, one does
        for gateway in stores:
            gateway._held.clear()
            gateway._keys.clear()


async def test_leases_are_renewed_until_the_end(
    shop: Shop, store: StoreMake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "RENEW_S", 0.02)
    one = store()
    running = [(shop.a, await claimed(one, shop.a, key)) for key in "xyz"]
    running.append((shop.b, await claimed(one, shop.b)))
    ended = await claimed(one, shop.a, "ended")
    await one.finish(shop.a, ended, status=200, answer=None, **USAGE)
    await lease_end(shop)
    renewing = asyncio.create_task(one.run())
    try:
        async with await psycopg.AsyncConnection.connect(shop.database.admin_url, autocommit=True) as conn:
            async with asyncio.timeout(5):
                while True:
                    live = await rows(
                        conn,
                        "SELECT request_id FROM billing_idempotencyrecord"
                        " WHERE lease_until > now() + interval '10 s'",
                    )
                    if len(live) == len(running):
                        break
                    await asyncio.sleep(0.01)
    finally:
        renewing.cancel()
    assert {request_id for (request_id,) in live} == {claim.request_id for _, claim in running}


async def test_a_claim_that_nobody_ends_is_let_go(
    shop: Shop, store: StoreMake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = store()
    claim = await claimed(one, shop.a)
    monkeypatch.setattr(idempotency, "_MAX_HELD_S", -1.0)
    await one._renew()
    assert str(claim.request_id) in caplog.text
    await lease_end(shop)
    assert await one.claim(shop.a, "k", SAME, uuid4()) == Claim(claim.request_id, 2, 2)


async def test_after_a_day_the_key_is_free(shop: Shop, store: StoreMake) -> None:
    one = store()
    for key, end in (("done", one.finish), ("failed", None), ("running", None)):
        claim = await claimed(one, shop.a, key)
        if end is not None:
            await end(shop.a, claim, status=200, answer=b"x", **USAGE)
        elif key == "failed":
            await one.fail(shop.a, claim)
    await administer(shop, "UPDATE billing_idempotencyrecord SET expires_at = now()")
    for key in ("done", "failed"):
        fresh = uuid4()
        assert await one.claim(shop.a, key, OTHER, fresh) == Claim(fresh, 1, 1)
    assert isinstance(await one.claim(shop.a, "running", SAME, uuid4()), Running)  # while its lease lives
    await lease_end(shop)
    assert isinstance(await store("other").claim(shop.a, "running", SAME, uuid4()), Claim)


async def test_the_clean_up_deletes_what_is_over_and_nothing_else(shop: Shop, store: StoreMake) -> None:
    one = store()
    for number in range(7):
        tenant = shop.a if number % 2 else shop.b
        claim = await claimed(one, tenant, f"over-{number}")
        await one.fail(tenant, claim)
    await administer(shop, "UPDATE billing_idempotencyrecord SET expires_at = now() - interval '1 s'")
    await claimed(one, shop.a, "young")
    await claimed(one, shop.a, "running")
    await administer(shop, "UPDATE billing_idempotencyrecord SET expires_at = now() WHERE key = 'running'")

    def clean_up() -> int:
        with operator_scope():
            return idempotency_expire(batch=3)

    assert await asyncio.to_thread(clean_up) == 7
    async with await psycopg.AsyncConnection.connect(shop.database.operator_url) as conn:
        left = await rows(conn, "SELECT key FROM billing_idempotencyrecord ORDER BY key")
    assert left == [("running",), ("young",)]


async def test_a_claim_repeated_after_a_lost_answer_is_the_same(shop: Shop, store: StoreMake) -> None:
    request_id = uuid4()
    first = await store().claim(shop.a, "k", SAME, request_id)
    assert await store().claim(shop.a, "k", SAME, request_id) == first


@pytest.mark.parametrize("key", ["", "k" * 256, "a\0b"])
async def test_an_impossible_key_is_refused(shop: Shop, store: StoreMake, key: str) -> None:
    with pytest.raises(ValueError, match="1 to 255"):
        await store().claim(shop.a, key, SAME, uuid4())


async def test_a_long_key_of_any_script_is_kept_whole(shop: Shop, store: StoreMake) -> None:
    one = store()
    claim = await claimed(one, shop.a, "ü" * 255)
    assert (await one.claim(shop.a, "ü" * 254, SAME, uuid4())) != claim
    assert isinstance(await one.claim(shop.a, "ü" * 255, SAME, uuid4()), Running)


async def test_without_postgresql_it_says_so_at_once() -> None:
    store = IdempotencyStore("postgresql://nobody@127.0.0.1:1/none", "gateway-1")
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.claim(uuid4(), "k", SAME, uuid4())
    assert time.monotonic() - started < 0.5


async def test_connections_that_died_while_idle_are_replaced(shop: Shop, store: StoreMake) -> None:
    one = store()
    await claimed(one, shop.a, "before")
    await administer(
        shop,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"  # returns when they have ended
        f" WHERE datname = '{shop.database.name}' AND pid <> pg_backend_pid() AND query <> ''",
    )
    await claimed(one, shop.a, "after")


@asynccontextmanager
async def hanging(shop: Shop, postgres: PostgresServer) -> AsyncIterator[None]:
    """The server stands still: its sockets accept and nothing answers."""
    async with await psycopg.AsyncConnection.connect(shop.database.admin_url, autocommit=True) as conn:
        backends = [
            pid
            for (pid,) in await rows(
                conn, "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            )
        ]
    pids = [postgres.pid, *backends]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the one that was just asked
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_a_postgresql_that_hangs_makes_nobody_wait(
    shop: Shop, store: StoreMake, postgres: PostgresServer
) -> None:
    one, fresh = store(limit_s=0.4), store("gateway-2", limit_s=0.4)
    claim = await claimed(one, shop.a)
    async with hanging(shop, postgres):
        started = time.monotonic()
        outcomes = await asyncio.gather(
            one.finish(shop.a, claim, status=200, answer=b"x", **USAGE),
            *(gateway.claim(shop.a, "k", SAME, uuid4()) for gateway in (one, fresh) for _ in range(6)),
            return_exceptions=True,
        )
        waited_s = time.monotonic() - started
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 13
    assert waited_s < 0.8
    assert await one.finish(shop.a, claim, status=200, answer=b"x", **USAGE)
    assert isinstance(await fresh.claim(shop.a, "k", SAME, uuid4()), Stored)
