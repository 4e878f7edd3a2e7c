"""A key that ends is refused at once, and everything that is open by it ends with it, recorded and billed."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gpuworker.wire.messages import Submit
from tests.gateway.durable import BODY, Fleet, gateway_added, key, key_known, paced
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WAIT_S
from tests.gateway.proxy import relayed
from tests.gateway.raw import RawConnection, Response
from tests.gateway.sockets import socket_open

pytestmark = pytest.mark.asyncio(loop_scope="package")

STREAMED = {**BODY, "stream": True}
LIST = {"model": MODEL, "prompt": ["one", "two", "three"], "stream": True}
RESUMABLE = "x-stream-resume: 1"
EXPIRES_S = 0.7
REFUSED_S = 1.0
ENDED_S = 2.0


async def is_revoked(fleet: Fleet) -> float:
    """Each of these returns the time from which on the key is not valid."""
    await fleet.revoke()
    return now()


async def expires(fleet: Fleet) -> float:
    expires_at = now() + EXPIRES_S
    await fleet.sql(
        "UPDATE tenants_apikey SET expires_at = now() + make_interval(secs => %s) WHERE public_id = %s",
        EXPIRES_S,
        fleet.customer.public_id,
    )
    return expires_at


async def is_suspended(fleet: Fleet) -> float:
    query = "UPDATE tenants_tenant SET status = 'suspended' WHERE id = %s"
    await fleet.sql(query, fleet.customer.tenant_id)
    return now()


async def is_closed(fleet: Fleet) -> float:
    """As `tenants.services.tenant_close` does."""
    for query in (
        "UPDATE tenants_apikey SET revoked_at = now() WHERE tenant_id = %s",
        "DELETE FROM tenants_tenantdatakey WHERE tenant_id = %s",
        "UPDATE tenants_tenant SET status = 'closed' WHERE id = %s",
    ):
        await fleet.sql(query, fleet.customer.tenant_id)
    return now()


Ending = Callable[[Fleet], Awaitable[float]]
EVERY_ENDING = [is_revoked, expires, is_suspended, is_closed]
OF_THE_KEY = [is_revoked, expires]


def now() -> float:
    return asyncio.get_running_loop().time()


async def said(connection: RawConnection) -> tuple[int, str, float]:
    """Status, the code of the error that it ended with, and when."""
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    ended_at = now()
    if response.status == 200:
        assert b"[DONE]" not in response.body
        event = response.body.rpartition(b"event: error\ndata: ")[2]
        return 200, json.loads(event)["error"]["code"], ended_at
    return response.status, response.json()["error"]["code"], ended_at


async def submitted(fleet: Fleet, *, gateway: int = 0) -> Submit:
    """The next one, placed and with a first token."""
    process = fleet.gateways[gateway]
    submit = await process.dispatcher.submitted()
    process.dispatcher.place(submit, process.worker)
    process.worker.emit(submit.sid, 0, 1, "one", prompt=9)
    return submit


@pytest.mark.parametrize("ending", EVERY_ENDING)
async def test_everything_that_is_open_ends_and_is_recorded(fleet: Fleet, ending: Ending) -> None:
    stream = await fleet.open(STREAMED)
    await submitted(fleet)
    whole = await fleet.open(BODY)
    await submitted(fleet)
    prompts = await fleet.open(LIST, path="/v1/completions")
    for _ in range(3):
        await submitted(fleet)
    queued = await fleet.open(STREAMED)
    await fleet.gateways[0].dispatcher.submitted()
    first = await fleet.open(STREAMED, key("one"), RESUMABLE)
    resumable = await submitted(fleet)
    await asyncio.sleep(0.1)
    duplicates = [await fleet.open(STREAMED, key("one"), gateway=index) for index in (0, 1)]
    path = f"/v1/streams/{resumable.request_id}"
    resumed = [await fleet.open({}, path=path, method="GET", gateway=index) for index in (0, 1)]
    await asyncio.sleep(0.3)

    ended_at = await ending(fleet)
    mine = await asyncio.gather(*map(said, [stream, prompts, first]))
    begun = await asyncio.gather(*map(said, [whole, queued]))
    followers = await asyncio.gather(*map(said, [*duplicates, *resumed]))
    assert {answer[:2] for answer in mine} == {(200, "invalid_api_key")}
    assert {answer[:2] for answer in begun} == {(401, "invalid_api_key")}
    # On the other gateway whichever comes first: the end of their key, or of what they followed.
    assert {answer[:2] for answer in followers} <= {(200, "invalid_api_key"), (200, "request_cancelled")}
    answers = [*mine, *begun, *followers]
    late = max(answer[2] for answer in answers) - ended_at
    assert -0.1 < late < ENDED_S
    rows = await fleet.usage_rows(7)
    assert {row[2] for row in rows} == {"cancelled"}
    assert sorted(row[4] for row in rows) == [0, 1, 1, 1, 1, 1, 1]
    assert (await fleet.post(BODY)).status == 401


@pytest.mark.parametrize("ending", EVERY_ENDING)
async def test_nothing_new_begins_anywhere(fleet: Fleet, ending: Ending) -> None:
    asks: list[Callable[[], Awaitable[Response]]] = [
        lambda: fleet.post(BODY, gateway=1),
        lambda: fleet.post(BODY, key("new"), gateway=1),
        lambda: fleet.post({**BODY, "max_tokens": 5}, path="/v1/messages"),
        lambda: fleet.get("/v1/models"),
        lambda: fleet.get("/v1/usage/018f0000-0000-7000-8000-000000000001"),
        lambda: fleet.get("/v1/streams/018f0000-0000-7000-8000-000000000001"),
        lambda: fleet.get("/v1/streams/018f0000-0000-7000-8000-000000000001", method="DELETE"),
    ]
    with fleet.scripted(paced(["x"])):
        assert (await fleet.post(BODY, key("stored"))).status == 200
        ended_at = await ending(fleet)
        while (await fleet.get("/v1/models", gateway=1)).status != 401:
            assert now() - ended_at < REFUSED_S
            await asyncio.sleep(0.01)
        await asyncio.sleep(max(ended_at + REFUSED_S - now(), 0))
        answers = [await ask() for ask in asks]
        answers.append(await fleet.post(BODY, key("stored")))
    assert {answer.status for answer in answers} == {401}
    await fleet.usage_rows(1)


@pytest.mark.parametrize("ending", OF_THE_KEY)
async def test_another_key_of_the_tenant_goes_on(fleet: Fleet, ending: Ending) -> None:
    """Also one whose request repeats another one's: it follows, or is told to send it again."""
    colleague = fleet.of(replace(fleet.customer, key=fleet.customer.other_key))
    theirs = await colleague.open(STREAMED)
    running = await submitted(fleet)
    first = await colleague.open(STREAMED, key("theirs"))
    shared = await submitted(fleet)
    await asyncio.sleep(0.1)
    mine = await fleet.open(STREAMED, key("theirs"))
    begun = await fleet.open(STREAMED, key("mine"))
    await submitted(fleet)
    await asyncio.sleep(0.1)
    follower = await colleague.open(STREAMED, key("mine"), gateway=1)
    await asyncio.sleep(0.2)

    await ending(fleet)
    assert (await said(mine))[:2] == (200, "invalid_api_key")
    assert (await said(begun))[:2] == (200, "invalid_api_key")
    assert (await said(follower))[:2] == (200, "request_cancelled")
    worker = fleet.gateways[0].worker
    for submit in (running, shared):
        worker.emit(submit.sid, 1, 1, "two", prompt=9)
        worker.finish(submit.sid, "stop", prompt=9, output=2)
    for connection in (theirs, first):
        response = await asyncio.wait_for(connection.response(), WAIT_S)
        assert response.body.endswith(b"data: [DONE]\n\n")
    with fleet.scripted(paced(["x"])):
        assert (await colleague.post(STREAMED, key("mine"), gateway=1)).body.endswith(b"[DONE]\n\n")
    assert sorted(row[2] for row in await fleet.usage_rows(4)) == ["cancelled", *["completed"] * 3]


@pytest.mark.parametrize("ending", EVERY_ENDING)
async def test_a_stream_in_its_grace_period_ends_too(fleet: Fleet, ending: Ending) -> None:
    connection = await fleet.open(STREAMED, RESUMABLE)
    submit = await submitted(fleet)
    await connection.head()
    connection.close()
    ended_at = await ending(fleet)
    cancel = await asyncio.wait_for(fleet.gateways[0].worker.cancels.get(), ENDED_S)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    assert now() - ended_at < ENDED_S
    (row,) = await fleet.usage_rows(1)
    assert (row[2], row[4]) == ("cancelled", 1)


@pytest.mark.parametrize("headers", [(), (key("one"),)])
async def test_a_request_whose_body_comes_after_the_end_starts_nothing(
    fleet: Fleet, headers: tuple[str, ...]
) -> None:
    data = json.dumps(BODY).encode()
    connection = await RawConnection.open(fleet.gateways[0].port)
    length = f"content-length: {len(data)}"
    authorization = fleet.customer.authorization
    connection.send("POST", "/v1/chat/completions", data[:-1], authorization, length, *headers)
    counting = await RawConnection.open(fleet.gateways[0].port)
    counting.send("POST", "/v1/messages/count_tokens", data[:-1], authorization, length)
    await asyncio.sleep(0.1)
    await fleet.revoke()
    await key_known(fleet, 0, status=401)
    for waiting in (connection, counting):
        waiting.writer.write(data[-1:])
        assert (await asyncio.wait_for(waiting.response(), WAIT_S)).status == 401
    assert fleet.gateways[0].dispatcher.submits.empty()
    if headers:
        with fleet.scripted(paced(["x"])):  # it let the idempotency key go
            colleague = fleet.of(replace(fleet.customer, key=fleet.customer.other_key))
            assert (await colleague.post(BODY, *headers)).status == 200
        await fleet.usage_rows(1)
    else:
        await fleet.usage_rows(0)


async def test_a_duplicate_that_waits_is_refused(fleet: Fleet) -> None:
    """The first one is of a zero-retention tenant: there is nothing to attach to."""
    fleet = fleet.of(fleet.strict.pop())
    colleague = fleet.of(replace(fleet.customer, key=fleet.customer.other_key))
    first = await colleague.open(STREAMED, key("one"))
    submit = await submitted(fleet)
    waiting = await fleet.open(STREAMED, key("one"), gateway=1)
    await asyncio.sleep(0.3)
    revoked_at = await is_revoked(fleet)
    status, code, ended_at = await said(waiting)
    assert (status, code) == (401, "invalid_api_key")
    assert ended_at - revoked_at < ENDED_S
    fleet.gateways[0].worker.finish(submit.sid, "stop", prompt=9, output=1)
    assert (await first.response()).body.endswith(b"[DONE]\n\n")
    await fleet.usage_rows(1)


async def test_a_socket_is_closed_when_its_key_expires(fleet: Fleet) -> None:
    async with socket_open(fleet.gateways[0], fleet.customer.key) as client:
        await client.create("a", STREAMED)
        await submitted(fleet)
        await client.receive_until("chunk")
        ended_at = await expires(fleet)
        assert (await client.closed())[0] == 1008
        assert -0.1 < now() - ended_at < ENDED_S
        assert client.told["a"].last["error"]["code"] == "invalid_api_key"
    (row,) = await fleet.usage_rows(1)
    assert row[2] == "cancelled"


async def test_keys_expire_also_while_postgres_is_away(fleet: Fleet) -> None:
    async with (
        relayed(fleet.database.gateway_url) as relay,
        gateway_added(fleet, database_url=relay.url) as added,
    ):
        gateway: GatewayProcess = added.gateways[0]
        connection = await added.open(STREAMED)
        await submitted(added)
        expires_at = now() + 2 * EXPIRES_S
        await added.apply(
            "UPDATE tenants_apikey SET expires_at = now() + make_interval(secs => %s) WHERE public_id = %s",
            2 * EXPIRES_S,
            fleet.customer.public_id,
        )
        await relay.cut()
        status, code, ended_at = await said(connection)
        assert (status, code) == (200, "invalid_api_key")
        assert -0.1 < ended_at - expires_at < ENDED_S
        assert (await added.post(BODY)).status == 401
        await gateway.idle()
