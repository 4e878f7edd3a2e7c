"""A client that leaves, in every state, under every server: the request is cancelled at once."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from gpuworker.wire.messages import Cancel, Submit
from tests.conformance.fronts import Front
from tests.e2e.observe import usage_row
from tests.gateway.harness import MODEL
from tests.gateway.raw import RawConnection

pytestmark = pytest.mark.asyncio(loop_scope="package")

SEEN_S = 1.0  # generous: this machine also runs the clients


def leave_close(connection: RawConnection) -> None:
    connection.close()


def leave_reset(connection: RawConnection) -> None:
    """As a process that dies with unread data does."""
    raw: socket.socket = connection.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.writer.transport.abort()


def leave_half(connection: RawConnection) -> None:
    """Only the sending side: whoever does this mid-request is taken to have left."""
    connection.writer.write_eof()


Leave = Callable[[RawConnection], None]
EVERY_WAY = pytest.mark.parametrize("leave", [leave_close, leave_reset, leave_half])
STREAMING = pytest.mark.parametrize("stream", [False, True])


async def ask(front: Front, *, stream: bool) -> tuple[RawConnection, Submit]:
    body = {"model": MODEL, "prompt": "count", "max_tokens": 400, "stream": stream}
    connection = await RawConnection.open(front.gateway.port)
    headers = (f"authorization: Bearer {front.key}", "content-type: application/json")
    connection.send("POST", "/v1/completions", json.dumps(body).encode(), *headers)
    return connection, await front.dispatcher.submitted()


async def seen(cancels: "asyncio.Queue[Cancel]", submit: Submit) -> None:
    cancel = await asyncio.wait_for(cancels.get(), SEEN_S)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")


async def usage_is(front: Front, request_id: str, outcome: str, output_tokens: int) -> None:
    row = await usage_row(front.deployment.database.operator_url, request_id)
    assert (row["outcome"], row["output_tokens"]) == (outcome, output_tokens)


@STREAMING
@EVERY_WAY
async def test_while_queued(front: Front, leave: Leave, stream: bool) -> None:
    connection, submit = await ask(front, stream=stream)
    leave(connection)
    await seen(front.dispatcher.cancels, submit)
    await usage_is(front, submit.request_id, "cancelled", 0)


@STREAMING
@EVERY_WAY
async def test_while_the_worker_is_silent(front: Front, leave: Leave, stream: bool) -> None:
    connection, submit = await ask(front, stream=stream)
    front.dispatcher.place(submit, front.worker)
    await asyncio.sleep(0.05)
    leave(connection)
    await seen(front.worker.cancels, submit)
    await usage_is(front, submit.request_id, "cancelled", 0)


@EVERY_WAY
async def test_between_two_tokens(front: Front, leave: Leave) -> None:
    connection, submit = await ask(front, stream=True)
    front.dispatcher.place(submit, front.worker)
    front.worker.emit(submit.sid, 0, 1, "one")
    await connection.head()
    assert b"one" in await connection.chunk()
    leave(connection)
    await seen(front.worker.cancels, submit)
    await usage_is(front, submit.request_id, "cancelled", 1)


@STREAMING
async def test_while_tokens_flow(front: Front, stream: bool) -> None:
    connection, submit = await ask(front, stream=stream)
    front.dispatcher.place(submit, front.worker)
    sent = 0
    for sent in range(200):
        front.worker.emit(submit.sid, sent, 1, f" {sent}")
        if sent == 20:
            connection.close()
        if not front.worker.cancels.empty():
            break
        await asyncio.sleep(0.005)
    await seen(front.worker.cancels, submit)
    assert sent < 150
    row = await usage_row(front.deployment.database.operator_url, submit.request_id)
    assert row["outcome"] == "cancelled"
    assert row["output_tokens"] in (sent, sent + 1)  # the last one may have crossed the cancel


async def test_a_hundred_at_once(front: Front) -> None:
    asked = [await ask(front, stream=bool(number % 2)) for number in range(100)]
    for _, submit in asked:
        front.dispatcher.place(submit, front.worker)
    await asyncio.sleep(0.1)
    began = time.monotonic()
    for connection, _ in asked:
        connection.close()
    sids = {(await asyncio.wait_for(front.worker.cancels.get(), SEEN_S)).sid for _ in asked}
    assert sids == {submit.sid for _, submit in asked}
    assert time.monotonic() - began < SEEN_S


async def test_a_client_that_stays_is_not_cancelled(front: Front) -> None:
    """The request's body has been read, and nothing more comes: that is no leaving."""
    connection, submit = await ask(front, stream=False)
    front.dispatcher.place(submit, front.worker)
    await asyncio.sleep(0.3)
    assert front.worker.cancels.empty()
    front.speak(submit, ["done"], "stop")
    response = await connection.response()
    assert response.json()["choices"][0]["text"] == "done"
    # … and the connection serves the next request
    connection.send("GET", "/v1/models", b"", f"authorization: Bearer {front.key}")
    assert (await connection.response()).status == 200


async def test_the_openai_client_closes_its_stream(front: Front) -> None:
    chat: Any = [{"role": "user", "content": "hello"}]
    async with openai.AsyncOpenAI(base_url=front.base_url, api_key=front.key) as client:
        asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=chat, stream=True))
        submit = await front.dispatcher.submitted()
        front.dispatcher.place(submit, front.worker)
        front.worker.emit(submit.sid, 0, 1, "one")
        async with await asking as stream:
            await anext(aiter(stream))
        await seen(front.worker.cancels, submit)


async def test_the_openai_client_gives_up(front: Front) -> None:
    chat: Any = [{"role": "user", "content": "hello"}]
    async with openai.AsyncOpenAI(
        base_url=front.base_url, api_key=front.key, max_retries=0, timeout=openai.Timeout(5, read=0.3)
    ) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model=MODEL, messages=chat)
        submit = await front.dispatcher.submitted()
        cancel = await asyncio.wait_for(front.dispatcher.cancels.get(), SEEN_S)
    assert cancel.sid == submit.sid
    # its own timeout is sent along as the deadline: whichever comes first
    assert cancel.reason in ("cancelled", "deadline")
