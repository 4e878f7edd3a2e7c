"""Sockets over a real PostgreSQL and Valkey: revoked keys, idempotency keys, streams that go on elsewhere."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway.durable import BODY, GRACE_S, Fleet, paced
from tests.gateway.sockets import SocketClient, Told, socket_open

pytestmark = pytest.mark.asyncio(loop_scope="package")

WORDS = [f"w{number} " for number in range(40)]
STREAMED = {**BODY, "stream": True, "max_tokens": 64}


@pytest_asyncio.fixture(loop_scope="package")
async def client(fleet: Fleet) -> AsyncIterator[SocketClient]:
    async with socket_open(fleet.gateways[0], fleet.customer.key) as opened:
        yield opened


async def revoke(fleet: Fleet) -> None:
    query = "UPDATE tenants_apikey SET revoked_at = now() WHERE public_id = %s"
    await fleet.sql(query, fleet.customer.public_id)


async def test_a_revoked_key_ends_its_requests_and_closes_its_sockets_within_a_second(
    fleet: Fleet, client: SocketClient
) -> None:
    async with socket_open(fleet.gateways[0], fleet.customer.other_key) as other:
        with fleet.scripted(paced(WORDS * 100, 0.02)):
            await client.create("streams", STREAMED)
            await client.create("whole", {**BODY, "max_tokens": 64})
            await client.create("starved", STREAMED, window=1)
            await client.create("logged", STREAMED, resumable=True)
            await other.create("goes on", STREAMED)
            for _ in range(20):
                await client.receive()
            await revoke(fleet)
            started = time.monotonic()
            assert await client.closed() == (1008, "the API key is no longer valid")
            assert time.monotonic() - started < 1
            for name in ("streams", "whole", "starved", "logged"):
                last = client.told[name].last
                assert (last["type"], last["error"]["code"]) == ("error", "invalid_api_key"), name
            await other.receive_until("chunk")
            await other.send(type="cancel", id="goes on")
            await other.ended("goes on")


async def test_an_idempotency_key_answers_again_over_a_socket_and_over_http(
    fleet: Fleet, client: SocketClient
) -> None:
    with fleet.scripted(paced(WORDS)):
        first = await client.chat("a", body=STREAMED, idempotency_key="key-1")
        again = await client.chat("b", body=STREAMED, idempotency_key="key-1")
        response = await fleet.post(STREAMED, "idempotency-key: key-1")
    assert (first.frames[0]["replayed"], again.frames[0]["replayed"]) == (False, True)
    assert first.text == again.text == "".join(WORDS)
    assert first.request_id == again.request_id == response.headers["x-request-id"]
    assert [chunk["data"] for chunk in first.chunks] == [chunk["data"] for chunk in again.chunks]
    other = await client.chat("c", body={**STREAMED, "max_tokens": 63}, idempotency_key="key-1")
    assert (other.last["status"], other.last["error"]["code"]) == (422, "idempotency_key_reused")
    await fleet.usage_rows(1)


async def test_twenty_at_once_with_one_key_are_one_generation(fleet: Fleet) -> None:
    async with (
        socket_open(fleet.gateways[0], fleet.customer.key) as first,
        socket_open(fleet.gateways[1], fleet.customer.other_key) as second,
    ):
        with fleet.scripted(paced(WORDS, 0.005)):
            for number in range(20):
                client = (first, second)[number % 2]
                await client.create(f"r{number}", STREAMED, idempotency_key="one")
            told = [
                *await first.ended(*(f"r{number}" for number in range(0, 20, 2))),
                *await second.ended(*(f"r{number}" for number in range(1, 20, 2))),
            ]
    assert {answer.text for answer in told} == {"".join(WORDS)}
    assert all(answer.gapless() for answer in told)
    assert sum(not answer.frames[0]["replayed"] for answer in told) == 1
    await fleet.usage_rows(1)


@pytest.mark.parametrize("gateway", [0, 1])
@pytest.mark.parametrize("seen", [0, 1, 17])
async def test_a_stream_goes_on_on_another_socket(fleet: Fleet, gateway: int, seen: int) -> None:
    with fleet.scripted(paced(WORDS, 0.01)):
        async with socket_open(fleet.gateways[0], fleet.customer.key) as client:
            await client.create("a", STREAMED, resumable=True)
            await client.receive_until("request.accepted")
            while len(client.told["a"].chunks) < seen:
                await client.receive()
            client.connection.transport.abort()
        begun = client.told["a"]
        async with socket_open(fleet.gateways[gateway], fleet.customer.key) as again:
            await again.send(type="request.resume", id="b", request_id=begun.request_id, after=seen)
            (rest,) = await again.ended("b")
            assert rest.last["type"] == "done"
            assert rest.gapless(after=seen)
            joined = Told([*begun.frames[: seen + 1], *rest.frames[1:]])
            assert joined.text == "".join(WORDS)
            await again.send(
                type="request.resume", id="c", request_id=begun.request_id, after=rest.last["seq"] - 1
            )
            (end,) = await again.ended("c")
            assert [frame["type"] for frame in end.frames] == ["request.accepted", "done"]
    await fleet.usage_rows(1)


async def test_a_stream_that_began_over_http_goes_on_on_a_socket(fleet: Fleet, client: SocketClient) -> None:
    with fleet.scripted(paced(WORDS, 0.01)):
        connection = await fleet.open(STREAMED, "x-stream-resume: 1")
        request_id = (await connection.head()).headers["x-request-id"]
        events = b""
        while events.count(b"\n\n") < 5:
            events += await connection.chunk()
        connection.close()
        last = events.rsplit(b"id: ", 1)[1].split(b"\n")[0].decode()
        after = int(last.rpartition(":")[2])
        await client.send(type="request.resume", id="a", request_id=request_id, after=after)
        (rest,) = await client.ended("a")
    assert rest.gapless(after=after)
    assert "".join(WORDS).endswith(rest.text)
    assert rest.last["type"] == "done"
    await fleet.usage_rows(1)


async def test_what_is_not_there_cannot_be_resumed(fleet: Fleet, client: SocketClient) -> None:
    with fleet.scripted(paced(WORDS)):
        plain = await client.chat("a", body=STREAMED)
        for name, request_id in (("b", plain.request_id), ("c", "018f0000-0000-7000-8000-000000000001")):
            await client.send(type="request.resume", id=name, request_id=request_id)
            (told,) = await client.ended(name)
            assert (told.last["status"], told.last["error"]["code"]) == (410, "resume_expired")


@pytest.mark.parametrize("resumed_on", [None, 0, 1])
async def test_cancel_ends_a_resumable_stream_without_its_grace(
    fleet: Fleet, client: SocketClient, resumed_on: int | None
) -> None:
    worker = fleet.gateways[0].worker
    with fleet.scripted(paced(WORDS * 100, 0.01)):
        await client.create("a", STREAMED, resumable=True)
        await client.receive_until("chunk")
        if resumed_on is None:
            await client.send(type="cancel", id="a")
        else:
            request_id = client.told["a"].request_id
            async with socket_open(fleet.gateways[resumed_on], fleet.customer.key) as other:
                await other.send(type="request.resume", id="b", request_id=request_id)
                await other.receive_until("chunk")
                await other.send(type="cancel", id="b")
                (told,) = await other.ended("b")
                assert told.last["type"] == "cancelled"
        await asyncio.wait_for(worker.cancels.get(), GRACE_S / 3)
        (told,) = await client.ended("a")
        assert told.last["type"] == ("cancelled" if resumed_on is None else "error")
    ((_, _, outcome, _, _),) = await fleet.usage_rows(1)
    assert outcome == "cancelled"
