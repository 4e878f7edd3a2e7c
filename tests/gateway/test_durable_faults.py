"""Gateways, PostgreSQL and Valkey are killed around durable requests: resumed or refused, and one bill."""

import asyncio
import json
import signal
from typing import Any

import psycopg
import pytest
from websockets.asyncio.client import connect

from billing.presence import GONE_AFTER_S, Presence
from billing.reaper import reap
from billing.worker_usage import Cursor, worker_usage_store
from gpuworker.wire.messages import Submit, UsageCheckpoint
from tests.gateway.durable import BODY, Fleet, gateway_added, key, key_known, paced
from tests.gateway.proxy import Relay
from tests.gateway.raw import RawConnection, Response

pytestmark = pytest.mark.asyncio(loop_scope="package")

STREAMED = {**BODY, "stream": True}
RESUMABLE = "x-stream-resume: 1"
WORDS = ["one", " two", " three", " four"]


def code(response: Response) -> tuple[int, str]:
    return response.status, response.json()["error"]["code"]


async def begin(fleet: Fleet, *headers: str, words: int = 2) -> tuple[RawConnection, Submit, str]:
    """A stream of the first gateway whose client has read so many words."""
    connection = await fleet.open(STREAMED, *headers)
    gateway = fleet.gateways[0]
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    for number in range(words):
        gateway.worker.emit(submit.sid, number, 1, WORDS[number])
    request_id = (await connection.head()).headers["x-request-id"]
    body = b""
    while WORDS[words - 1].encode() not in body:
        body += await connection.chunk()
    return connection, submit, request_id


async def rest(connection: RawConnection) -> bytes:
    body = b""
    while chunk := await asyncio.wait_for(connection.chunk(), 15):
        body += chunk
    return body


async def reaped(fleet: Fleet, submit: Submit, output_tokens: int, reason: str) -> None:
    """A controller collects what the worker counted, and bills what dead gateways left."""
    gateway = fleet.gateways[0]
    checkpoint = UsageCheckpoint(
        request_id=submit.request_id,
        attempt=submit.attempt,
        tenant=submit.tenant,
        gateway=gateway.worker.hello.result().incarnation,
        worker=gateway.worker.name,
        worker_incarnation=gateway.worker.incarnation,
        model=submit.model,
        digest=submit.digest,
        klass=submit.klass,
        prompt_tokens=7,
        cached_tokens=0,
        output_tokens=output_tokens,
        reason=reason,
        at_ms=1,
    )
    gone = Presence()
    for second in range(int(GONE_AFTER_S) + 1):
        gone.observe([], float(second))
    url = fleet.database.operator_url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await worker_usage_store(conn, "worker-0", [checkpoint], Cursor("j", 1))
        await reap(conn, gone, gone, GONE_AFTER_S)


@pytest.mark.parametrize("reaped_first", [True, False])
async def test_a_killed_gateways_request_runs_again_elsewhere(fleet: Fleet, *, reaped_first: bool) -> None:
    async with gateway_added(fleet) as fleet:
        victim, other = fleet.gateways[:2]
        _, submit, request_id = await begin(fleet, RESUMABLE, key("killed"))
        hello = victim.worker.hello
        victim.process.kill()
        await victim.process.wait()
        victim.worker.hello = hello  # its incarnation is still asked for

        # what it had sent can be read elsewhere, and then it is said that there is no more
        resumed = await fleet.open({}, gateway=1, path=f"/v1/streams/{request_id}?after=2", method="GET")
        assert (await resumed.head()).status == 200
        body = await rest(resumed)
        assert b" two" in body
        assert b"one" not in body
        assert b'"code":"gateway_lost"' in body
        everything = await fleet.get(f"/v1/streams/{request_id}?after=3", gateway=1)
        assert code(everything) == (410, "resume_expired")

        # its key waits for the lease, and then runs again from the beginning
        if reaped_first:
            await reaped(fleet, submit, 3, "gateway_lost")
        with fleet.scripted(paced(WORDS)):
            again = asyncio.create_task(fleet.post(STREAMED, RESUMABLE, key("killed"), gateway=1))
            await asyncio.sleep(0.3)
            assert not again.done()
            await fleet.leases_end()
            answer = await again
        assert answer.headers["x-request-id"] == request_id
        assert answer.body.endswith(b"[DONE]\n\n")
        assert answer.body.count(b"one") == 1
        await fleet.settled("killed", "done")
        if not reaped_first:
            await fleet.usage_rows(1)
            await reaped(fleet, submit, 3, "gateway_lost")
        rows = await fleet.usage_rows(2)
        assert {str(row[0]) for row in rows} == {request_id}
        assert sum(row[3] > 0 for row in rows) == 1  # the prompt once
        assert sum(row[4] for row in rows) == len(WORDS)


async def test_the_spool_of_a_killed_gateway_is_billed_once_when_it_is_back(fleet: Fleet) -> None:
    relay = Relay(fleet.database.gateway_url)
    await relay.start()
    async with gateway_added(fleet, database_url=relay.url) as fleet:
        victim = fleet.gateways[0]
        connection, submit, request_id = await begin(fleet, key("spooled"))
        await relay.cut()
        victim.worker.emit(submit.sid, 2, 2, " three four")
        victim.worker.finish(submit.sid, "stop", output=4)
        assert (await rest(connection)).endswith(
            b"[DONE]\n\n"
        )  # the usage is on disk, the key's record is not
        assert await fleet.record("spooled") == ("in_flight", 1)
        victim.process.kill()
        await victim.process.wait()
        await fleet.leases_end()
        with fleet.scripted(paced(WORDS)):
            for _ in range(200):  # its heart was heard a moment ago
                answer = await fleet.post(STREAMED, key("spooled"), gateway=1)
                if b"[DONE]" in answer.body:
                    break
                await asyncio.sleep(0.05)
        assert answer.body.endswith(b"[DONE]\n\n")
        await fleet.usage_rows(1)
        environment = {"SLUICE_SPOOL": str(victim.folder / "spool")}
        async with gateway_added(fleet, environment=environment):
            rows = await fleet.usage_rows(2)
        assert {str(row[0]) for row in rows} == {request_id}
        assert sum(row[3] > 0 for row in rows) == 1
        assert sum(row[4] for row in rows) == 4


async def test_an_owner_that_was_stopped_meanwhile_gives_no_second_answer(fleet: Fleet) -> None:
    async with gateway_added(fleet) as fleet:
        owner = fleet.gateways[0]
        connection, submit, request_id = await begin(fleet, RESUMABLE, key("paused"))
        owner.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(3.5)  # its heart is not heard any more
        await fleet.leases_end()
        with fleet.scripted(paced(WORDS)):
            answer = await fleet.post(STREAMED, RESUMABLE, key("paused"), gateway=1)
        assert answer.body.endswith(b"[DONE]\n\n")
        owner.process.send_signal(signal.SIGCONT)
        owner.worker.emit(submit.sid, 2, 2, " another end")
        owner.worker.finish(submit.sid, "stop", output=4)
        body = await rest(connection)
        assert b"[DONE]" not in body
        assert b'"code":"gateway_lost"' in body
        for gateway in (0, 1):
            again = await fleet.post(STREAMED, RESUMABLE, key("paused"), gateway=gateway)
            assert again.body == answer.body
        resumed = await fleet.get(f"/v1/streams/{request_id}-2", gateway=0)
        assert resumed.body == answer.body
        rows = await fleet.usage_rows(2)
        assert sum(row[3] > 0 for row in rows) == 1
        assert sum(row[4] for row in rows) == 4


async def test_without_postgres_nothing_with_a_key_runs(fleet: Fleet) -> None:
    relay = Relay(fleet.database.gateway_url)
    await relay.start()
    async with gateway_added(fleet, database_url=relay.url) as fleet:
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
    relay = Relay(fleet.database.gateway_url)
    await relay.start()
    async with gateway_added(fleet, database_url=relay.url) as fleet:
        gateway = fleet.gateways[0]
        first = asyncio.create_task(fleet.post(body, key("later")))
        submit = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.emit(submit.sid, 0, 4, "".join(WORDS))
        await relay.cut()
        gateway.worker.finish(submit.sid, "stop", output=4)
        answer = await first
        assert answer.status == 200
        meanwhile = await fleet.post(body, key("later"), gateway=1)  # from its log
        assert meanwhile.body == answer.body
        await relay.start()
        await fleet.settled("later", "done")
        again = await fleet.post(body, key("later"), gateway=1)
        assert (again.body, again.headers["idempotent-replayed"]) == (answer.body, "true")
        await fleet.usage_rows(1)


async def test_a_stream_goes_on_without_valkey_and_cannot_be_resumed(fleet: Fleet) -> None:
    relay = Relay(fleet.redis_url)
    await relay.start()
    async with gateway_added(fleet, redis_url=relay.url) as fleet:
        gateway = fleet.gateways[0]
        connection, submit, request_id = await begin(fleet, RESUMABLE, key("unlogged"))
        await relay.cut()
        for number, word in enumerate(WORDS[2:], 2):
            gateway.worker.emit(submit.sid, number, 1, word)
        gateway.worker.finish(submit.sid, "stop", output=4)
        body = await rest(connection)
        assert b" three" in body
        assert b" four" in body
        assert body.endswith(b"[DONE]\n\n")
        assert code(await fleet.get(f"/v1/streams/{request_id}?after=2")) == (503, "overloaded")
        again = await fleet.post(STREAMED, RESUMABLE, key("unlogged"))  # stored all the same
        assert again.body.endswith(body)
        await relay.start()
        for _ in range(100):
            resumed = [
                await fleet.get(f"/v1/streams/{request_id}?after=2", gateway=index) for index in (0, 1)
            ]
            if {answer.status for answer in resumed} == {410}:
                break
            await asyncio.sleep(0.1)
        assert [code(answer) for answer in resumed] == [(410, "resume_expired")] * 2
        await fleet.usage_rows(1)


async def test_a_gateway_that_never_saw_valkey_serves(fleet: Fleet) -> None:
    relay = Relay(fleet.redis_url)
    await relay.start()
    await relay.cut()
    async with gateway_added(fleet, redis_url=relay.url) as fleet:
        with fleet.scripted(paced(WORDS, 0.05)):
            resumable = await fleet.post(STREAMED, RESUMABLE)
            assert resumable.body.endswith(b"[DONE]\n\n")
            twice = await asyncio.gather(*(fleet.post(STREAMED, key("blind")) for _ in range(2)))
        assert twice[0].body == twice[1].body
        assert twice[0].body.endswith(b"[DONE]\n\n")
        # nobody could come back to it: it is not kept alive for that
        connection, _, _ = await begin(fleet, RESUMABLE)
        await asyncio.sleep(2.5)
        connection.close()
        await asyncio.wait_for(fleet.gateways[0].worker.cancels.get(), 1.5)
        await fleet.usage_rows(3)


@pytest.mark.parametrize("carrier", ["http", "socket"])
async def test_a_client_that_leaves_while_its_key_is_claimed_leaves_nothing(
    fleet: Fleet, carrier: str
) -> None:
    url = fleet.database.admin_url
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.execute("LOCK TABLE billing_idempotencyrecord IN ACCESS EXCLUSIVE MODE")
        if carrier == "http":
            connection = await fleet.open(STREAMED, key("hasty"))
            await asyncio.sleep(0.3)
            connection.close()
        else:
            await _socket_hurry(fleet)
        await asyncio.sleep(0.2)
        await conn.rollback()
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
        gateway = fleet.gateways[0]
        prepared = await fleet.post(BODY, key("first"), "x-request-deadline-ms: 1")
        assert prepared.status in (503, 504)
        await gateway.dispatcher.stop()
        refused = await fleet.post(BODY, key("placeless"))
        assert code(refused) == (503, "overloaded")
        with fleet.scripted(paced(WORDS)):
            assert (await fleet.post(BODY, key("placeless"), gateway=1)).status == 200
        await key_known(fleet, 0)
