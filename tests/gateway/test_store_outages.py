"""PostgreSQL, Valkey or the dispatcher is away around durable requests: what runs, and what is kept."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from websockets.asyncio.client import connect

from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import Submit
from tests.gateway.begun import RESUMABLE, STREAMED, WORDS, begin, code
from tests.gateway.durable import BODY, Fleet, gateway_added, key, paced
from tests.gateway.proxy import relayed

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_without_postgres_nothing_with_a_key_runs(fleet: Fleet) -> None:
    async with (
        relayed(fleet.database.gateway_url) as relay,
        gateway_added(fleet, database_url=relay.url) as fleet,
    ):
        await relay.cut()
        submits: list[Submit] = []
        with fleet.scripted(paced(WORDS, submits=submits)):
            refused = await fleet.post(BODY, key("nowhere"))
            assert code(refused) == (503, "overloaded")
            assert int(refused.headers["retry-after-ms"]) > 0
            assert not submits
            assert (await fleet.post(BODY)).status == 200
            await relay.start()
            for _ in range(100):
                answer = await fleet.post(BODY, key("nowhere"))
                if answer.status == 200:
                    break
                await asyncio.sleep(0.1)
        assert answer.status == 200
        assert len(submits) == 2
        await fleet.usage_rows(2)


@pytest.mark.parametrize("stream", [False, True])
async def test_postgres_lost_before_the_end_is_told_later(fleet: Fleet, *, stream: bool) -> None:
    body = {**BODY, "stream": stream}
    async with (
        relayed(fleet.database.gateway_url) as relay,
        gateway_added(fleet, database_url=relay.url) as fleet,
    ):
        gateway = fleet.gateways[0]
        first = asyncio.create_task(fleet.post(body, key("later")))
        submit = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.emit(submit.sid, 0, 4, "".join(WORDS))
        await relay.cut()
        gateway.worker.finish(submit.sid, "stop", output=4)
        answer = await first
        assert answer.status == 200
        await fleet.leases_end()  # which does not matter: the owner lives
        meanwhile = await fleet.post(body, key("later"), gateway=1)  # from its log
        assert meanwhile.body == answer.body
        await relay.start()
        await fleet.settled("later", "done")
        again = await fleet.post(body, key("later"), gateway=1)
        assert (again.body, again.headers["idempotent-replayed"]) == (answer.body, "true")
        await fleet.usage_rows(1)


async def test_a_stream_goes_on_without_valkey_and_cannot_be_resumed(fleet: Fleet) -> None:
    async with relayed(fleet.redis_url) as relay, gateway_added(fleet, redis_url=relay.url) as fleet:
        begun = await begin(fleet, RESUMABLE, key("unlogged"), words=2)
        await relay.cut()
        begun.finish_words()
        body = await begun.rest()
        assert b" three" in body
        assert b" four" in body
        assert body.endswith(b"[DONE]\n\n")
        assert code(await begun.get(after=2, gateway=0)) == (503, "overloaded")
        again = await fleet.post(STREAMED, RESUMABLE, key("unlogged"))  # stored all the same
        assert again.body.endswith(body)
        await relay.start()
        for _ in range(100):
            resumed = [await begun.get(after=2, gateway=index) for index in (0, 1)]
            if {answer.status for answer in resumed} == {410}:
                break
            await asyncio.sleep(0.1)
        assert [code(answer) for answer in resumed] == [(410, "resume_expired")] * 2
        await fleet.usage_rows(1)


async def test_what_is_not_in_the_log_yet_is_not_sent(fleet: Fleet, valkey: ValkeyServer) -> None:
    begun = await begin(fleet, RESUMABLE, words=2)
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        begun.say(" three")
        sent = asyncio.create_task(begun.connection.chunk())
        await asyncio.sleep(0.5)
        assert not sent.done()
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    assert b" three" in await sent
    begun.finish()
    await begun.rest()
    resumed = await begun.get()
    assert b" three" in resumed.body


async def test_a_gateway_that_never_saw_valkey_serves(fleet: Fleet) -> None:
    async with relayed(fleet.redis_url) as relay:
        await relay.cut()
        nowhere = relay.url
    async with gateway_added(fleet, redis_url=nowhere) as fleet:
        with fleet.scripted(paced(WORDS, 0.05)):
            resumable = await fleet.post(STREAMED, RESUMABLE)
            assert resumable.body.endswith(b"[DONE]\n\n")
            twice = await asyncio.gather(*(fleet.post(STREAMED, key("blind")) for _ in range(2)))
        assert twice[0].body == twice[1].body
        assert twice[0].body.endswith(b"[DONE]\n\n")
        # nobody could come back to it: it is not kept alive for that
        begun = await begin(fleet, RESUMABLE, words=2)
        await asyncio.sleep(2.5)
        begun.connection.close()
        assert await begun.is_cancelled(1.5)
        await fleet.usage_rows(3)


async def test_a_claim_whose_answer_was_lost_is_taken_over(fleet: Fleet) -> None:
    """Committed, but nobody heard of it: its owner lives, and runs nothing."""
    with fleet.scripted(paced(WORDS)):
        first = await fleet.post(BODY, key("unheard"))
        query = (
            "UPDATE billing_idempotencyrecord SET state = 'in_flight', request_id = %s WHERE tenant_id = %s"
        )
        await fleet.sql(query, uuid4(), fleet.customer.tenant_id)
        await fleet.leases_end()
        again = await fleet.post(BODY, key("unheard"), gateway=1)
    assert (first.status, again.status) == (200, 200)
    assert again.json()["choices"] == first.json()["choices"]
    await fleet.usage_rows(2)


@asynccontextmanager
async def records_locked(fleet: Fleet) -> AsyncIterator[None]:
    """Meanwhile no key can be claimed."""
    async with await psycopg.AsyncConnection.connect(fleet.database.admin_url) as conn:
        await conn.execute("LOCK TABLE billing_idempotencyrecord IN ACCESS EXCLUSIVE MODE")
        yield
        await conn.rollback()


@pytest.mark.parametrize("carrier", ["http", "socket"])
async def test_a_client_that_leaves_while_its_key_is_claimed_leaves_nothing(
    fleet: Fleet, carrier: str
) -> None:
    async with records_locked(fleet):
        if carrier == "http":
            connection = await fleet.open(STREAMED, key("hasty"))
            await asyncio.sleep(0.3)
            connection.close()
        else:
            await _socket_hurry(fleet)
        await asyncio.sleep(0.2)
    await fleet.settled("hasty", "failed")
    assert fleet.gateways[0].dispatcher.submits.empty()
    with fleet.scripted(paced(WORDS)):
        assert (await fleet.post(STREAMED, key("hasty"), gateway=1)).status == 200
    await fleet.usage_rows(1)


async def _socket_hurry(fleet: Fleet) -> None:
    url = f"ws://127.0.0.1:{fleet.gateways[0].port}/v1/stream"
    headers = {"authorization": f"Bearer {fleet.customer.key}"}
    async with connect(url, additional_headers=headers) as socket:
        frame: dict[str, Any] = {"type": "request.create", "id": "1", "body": STREAMED}
        await socket.send(json.dumps({**frame, "idempotency_key": "hasty"}))
        await asyncio.sleep(0.3)
        await socket.send(json.dumps({"type": "cancel", "id": "1"}))
        await asyncio.sleep(0.1)


async def test_a_dispatcher_that_is_away_leaves_no_claim(fleet: Fleet) -> None:
    async with gateway_added(fleet) as fleet:
        async with records_locked(fleet):
            refused = asyncio.create_task(fleet.post(BODY, key("placeless")))
            await asyncio.sleep(0.3)
            await fleet.gateways[0].dispatcher.stop()
            await asyncio.sleep(0.1)
        assert code(await refused) == (503, "overloaded")
        assert await fleet.record("placeless") == ("failed", 1)
        with fleet.scripted(paced(WORDS)):
            assert (await fleet.post(BODY, key("placeless"), gateway=1)).status == 200
