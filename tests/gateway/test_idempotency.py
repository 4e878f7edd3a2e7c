"""Requests with an Idempotency-Key: one generation and one bill, however often and wherever they are sent."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import Submit
from tests.conftest import Database
from tests.gateway.durable import MESSAGES, Fleet, fleet_started
from tests.gateway.peers import echo

pytestmark = pytest.mark.asyncio(loop_scope="package")

BODY = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
TEXT = 'Hello wörld 你好 \u2028line "end"\n'


def key(name: str) -> str:
    return f"idempotency-key: {name}"


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(database: Database, valkey: ValkeyServer) -> AsyncIterator[Fleet]:
    async with fleet_started(database, valkey, gateways=2) as fleet:
        yield fleet


def scripted(fleet: Fleet, gateway: int = 0) -> Any:
    peers = fleet.gateways[gateway].dispatcher
    return peers.scripted(echo(peers))


async def rows(fleet: Fleet, count: int) -> list[Any]:
    for _ in range(500):
        if len(found := await fleet.usage_rows()) >= count:
            break
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)  # a second row would come now
    found = await fleet.usage_rows()
    assert len(found) == count, found
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_twenty_at_once_are_one_generation(fleet: Fleet, *, stream: bool) -> None:
    submits: list[Submit] = []
    dispatchers = [gateway.dispatcher for gateway in fleet.gateways]

    def slowly(index: int) -> Any:
        def script(submit: Submit) -> None:
            submits.append(submit)
            dispatcher = dispatchers[index]
            loop = asyncio.get_running_loop()
            worker = dispatcher.workers[0]
            dispatcher.place(submit, worker)
            words = ["Hello", " wörld", " 你好", " \u2028line", ' "end"\n']
            for number, word in enumerate(words):
                loop.call_later(0.05 * number, worker.emit, submit.sid, number, 1, word)
            loop.call_later(0.3, lambda: worker.finish(submit.sid, "stop", output=5))

        return script

    with dispatchers[0].scripted(slowly(0)), dispatchers[1].scripted(slowly(1)):
        answers = await asyncio.gather(
            *(fleet.post({**BODY, "stream": stream}, key("one"), gateway=number % 2) for number in range(20))
        )
    assert [answer.status for answer in answers] == [200] * 20
    assert len({answer.body for answer in answers}) == 1
    assert len({answer.headers["x-request-id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 19
    assert len(submits) == 1
    (row,) = await rows(fleet, 1)
    assert str(row[0]) == answers[0].headers["x-request-id"]
    if not stream:
        assert answers[0].json()["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_one_is_replayed_by_any_gateway(fleet: Fleet, *, stream: bool) -> None:
    with scripted(fleet):
        first = await fleet.post({**BODY, "stream": stream}, key("again"))
    again = await fleet.post({**BODY, "stream": stream}, 'Idempotency-Key: "again"', gateway=1)
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    await rows(fleet, 1)


async def test_another_body_or_path_is_422(fleet: Fleet) -> None:
    with scripted(fleet):
        assert (await fleet.post(BODY, key("used"))).status == 200
    for body, path in (
        ({**BODY, "max_tokens": 4}, "chat/completions"),
        ({"model": "tiny", "prompt": "x"}, "completions"),
    ):
        refused = await fleet.post(body, key("used"), path=path)
        assert (refused.status, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    reordered = dict(reversed(BODY.items()))
    assert (await fleet.post(reordered, key("used"))).status == 200
    await rows(fleet, 1)


async def test_what_never_ran_may_be_sent_again(fleet: Fleet) -> None:
    bad = await fleet.post({**BODY, "max_tokens": -1}, key("later"))
    assert bad.status == 400
    with scripted(fleet):
        assert (await fleet.post(BODY, key("later"))).status == 200
    await rows(fleet, 1)


async def test_a_key_that_is_none(fleet: Fleet) -> None:
    for name in ("", '""', "x" * 256, "a\tb"):
        refused = await fleet.post(BODY, f"idempotency-key: {name}")
        assert (refused.status, refused.json()["error"]["param"]) == (400, "idempotency-key"), name


async def test_without_postgres_nothing_runs(database: Database, valkey: ValkeyServer) -> None:
    async with fleet_started(database, valkey) as fleet:
        relay_free = await fleet.post(BODY, key("x" * 10))
        assert relay_free.status in (200, 503)


async def test_zero_retention_keeps_the_usage_alone(database: Database, valkey: ValkeyServer) -> None:
    async with fleet_started(database, valkey, zero_retention=True) as fleet:
        with scripted(fleet):
            first = await fleet.post(BODY, key("secret"))
            again = await fleet.post(BODY, key("secret"))
        assert first.status == 200
        assert (again.status, again.json()["error"]["code"]) == (409, "replay_not_available")
        assert again.json()["error"]["usage"]["completion_tokens"] == 5
        await rows(fleet, 1)


async def test_a_client_that_left_may_come_back(fleet: Fleet) -> None:
    """Its key runs again as the next attempt, and only what is new is billed."""
    gateway = fleet.gateways[0]
    connection = await fleet.open(
        "POST", "/v1/chat/completions", json.dumps({**BODY, "stream": True}).encode(), key("torn")
    )
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 2, "Hello wörld")
    await connection.head()
    await connection.chunk()
    connection.close()
    await asyncio.wait_for(gateway.worker.cancels.get(), 5)
    with scripted(fleet):
        for _ in range(100):
            again = await fleet.post({**BODY, "stream": True}, key("torn"))
            if again.status == 200 and b"[DONE]" in again.body:
                break
            await asyncio.sleep(0.05)
    assert again.body.count(b"Hello") == 1
    first, second = await rows(fleet, 2)
    assert first[0] == second[0]
    assert (first[1], second[1]) == (1, 2)
    assert first[3] + second[3] > 0
    assert (first[3] == 0) != (second[3] == 0)  # the prompt is billed once
    assert first[4] + second[4] == 5
