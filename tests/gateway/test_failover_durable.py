"""A replica dies under an answer that others may read too: its log, its key and who follows it go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpuworker.wire.messages import Submit
from tests.gateway.begun import RESUMABLE, STREAMED, WORDS, rest
from tests.gateway.durable import BODY, Fleet, key
from tests.gateway.peers import WorkerPeer, socket_address
from tests.gateway.raw import RawConnection, Response

pytestmark = pytest.mark.asyncio(loop_scope="package")


@asynccontextmanager
async def continuing(fleet: Fleet, name: str) -> AsyncIterator[WorkerPeer]:
    """Of a tenant whose streams go on: one more worker of the first gateway, which will be lost."""
    query = "UPDATE tenants_tenant SET continues_streams = true WHERE id = %s"
    await fleet.apply(query, fleet.customer.tenant_id)
    gateway = fleet.gateways[0]
    worker = WorkerPeer(name, socket_address(gateway.folder, name), gateway.digest)
    await gateway.dispatcher.add(worker)
    yield worker
    if worker in gateway.dispatcher.workers:
        await gateway.dispatcher.lose(worker)


async def say_two(fleet: Fleet, worker: WorkerPeer) -> Submit:
    dispatcher = fleet.gateways[0].dispatcher
    submit = await dispatcher.submitted()
    dispatcher.place(submit, worker)
    for number in range(2):
        worker.emit(submit.sid, number, 1, WORDS[number], ids=[901 + number])
    return submit


async def say_the_rest(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    submit = await gateway.dispatcher.submitted()
    assert (submit.emitted, submit.moves) == (2, 1)
    gateway.dispatcher.place(submit, gateway.worker)
    for number in range(2, len(WORDS)):
        gateway.worker.emit(submit.sid, number, 1, WORDS[number], ids=[901 + number])
    gateway.worker.finish(submit.sid, "stop", output=len(WORDS))


async def read_two(connection: RawConnection) -> bytes:
    read = b""
    while WORDS[1].encode() not in read:
        read += await connection.chunk()
    return read


def events(body: bytes) -> list[bytes]:
    return [line for line in body.split(b"\n") if line.startswith((b"id: ", b"data: "))]


async def test_a_resumed_stream_goes_on_over_the_loss(fleet: Fleet) -> None:
    # Given a stream with two tokens, and somebody who follows it from another gateway
    async with continuing(fleet, "durable-a") as worker:
        connection = await fleet.open(STREAMED, RESUMABLE)
        await say_two(fleet, worker)
        request_id = (await connection.head()).headers["x-request-id"]
        read = await read_two(connection)
        path = f"/v1/streams/{request_id}?after=0"
        follower = await fleet.open({}, gateway=1, path=path, method="GET")
        await follower.head()
        followed = await read_two(follower)
        # When its replica dies, while its own client is away
        connection.close()
        await fleet.gateways[0].dispatcher.lose(worker)
        await say_the_rest(fleet)
        followed += await rest(follower)
    # Then the follower reads it to its end, and so does who comes back
    assert [word in followed.decode() for word in WORDS] == [True] * len(WORDS)
    assert followed.endswith(b"data: [DONE]\n\n")
    assert events(followed)[: len(events(read))] == events(read)
    again = await fleet.get(path, gateway=1)
    assert events(again.body) == events(followed)
    # And it is one row
    ((_, attempt, outcome, _, output),) = await fleet.usage_rows(1)
    assert (attempt, outcome, output) == (1, "completed", len(WORDS))


async def test_a_repeated_request_gets_the_answer_that_went_on(fleet: Fleet) -> None:
    # Given an answer in one piece under a key, and the same request again
    async with continuing(fleet, "durable-b") as worker:
        first = asyncio.create_task(fleet.post(BODY, key("lost-one")))
        await say_two(fleet, worker)
        await asyncio.sleep(0.1)
        second = asyncio.create_task(fleet.post(BODY, key("lost-one"), gateway=1))
        await asyncio.sleep(0.2)
        # When the replica dies
        await fleet.gateways[0].dispatcher.lose(worker)
        await say_the_rest(fleet)
        # Then both get the whole text, as does who asks later
        answers: list[Response] = [await first, await second, await fleet.post(BODY, key("lost-one"))]
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts == ["".join(WORDS)] * 3
    assert answers[2].headers["idempotent-replayed"] == "true"
    assert await fleet.record("lost-one") == ("done", 1)
    await fleet.usage_rows(1)
