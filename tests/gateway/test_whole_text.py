"""Answers of keys that are kept and sent again: whole, however long they are, or not at all."""

import asyncio
import json
import re

import pytest

from tests.gateway.durable import BODY, Fleet, key, paced
from tests.gateway.peers import WAIT_S
from tests.gateway.slow_client import slow_client

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
STREAMED = {**BODY, "stream": True}
LONG = [f" {number}" for number in range(6000)]  # 1.6 MB as events: more than may wait for a client


def told(events: bytes) -> str:
    deltas = re.findall(rb'"delta":\{"content":("[^"]*")\}', events)
    return "".join(map(json.loads, deltas))


def request_bytes(fleet: Fleet, *headers: str) -> bytes:
    data = json.dumps(STREAMED).encode()
    lines = [f"POST {CHAT} HTTP/1.1", "host: x", fleet.customer.authorization, *headers]
    return "\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode() + data


async def test_a_cancel_that_came_too_late_leaves_no_shortened_answer(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    gateway.worker.answers_cancels = False
    connection = await fleet.open(STREAMED, key("late"))
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "Hello")
    await connection.head()
    while b"Hello" not in await connection.chunk():
        pass
    connection.close()
    await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S)
    gateway.worker.emit(submit.sid, 1, 1, " world")  # it ended by itself meanwhile
    gateway.worker.finish(submit.sid, "stop", output=2)
    with fleet.scripted(paced(["Hello", " world"])):
        again = await fleet.post(STREAMED, key("late"))
    assert told(again.body) == "Hello world"


async def test_a_long_answer_is_replayed_to_a_slow_client(fleet: Fleet) -> None:
    with fleet.scripted(paced(LONG)):
        first = await fleet.post(STREAMED, key("long"))
    assert told(first.body) == "".join(LONG)
    async with slow_client(fleet.gateways[1].port, request_bytes(fleet, key("long"))) as client:
        while await client.read(64 * 1024) and not client.received.endswith(b"0\r\n\r\n"):  # noqa: ASYNC110 - some MB/s
            await asyncio.sleep(0.01)
    assert told(client.received) == "".join(LONG)


async def test_a_slow_reader_that_was_cut_resumes_where_it_was(fleet: Fleet) -> None:
    opt_in = ("x-stream-resume: 1", key("cut"))
    with fleet.scripted(paced(LONG)):
        async with slow_client(fleet.gateways[0].port, request_bytes(fleet, *opt_in)) as client:
            while not client.received.endswith(b"0\r\n\r\n") and await client.read(16 * 1024):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert b"slow_reader" in client.received
    last = re.findall(rb"id: (\S+)\n", client.received)[-1].decode()
    name, _, _ = last.rpartition(":")
    again = await fleet.get(f"/v1/streams/{name}", f"last-event-id: {last}")
    assert told(client.received) + told(again.body) == "".join(LONG)
