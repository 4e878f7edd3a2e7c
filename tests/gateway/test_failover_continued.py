"""A replica dies under a request that has tokens: another one goes on after them, where that may be."""

import asyncio

import pytest
from openai import AsyncOpenAI

from gpuworker.wire.messages import unpack_ids
from tests.gateway.harness import GatewayProcess
from tests.gateway.losing import BODY, begin, content, doomed
from tests.gateway.peers import WAIT_S
from tests.gateway.sockets import socket_open

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_an_answer_in_one_piece_goes_on_after_the_tokens_that_came(gateway: GatewayProcess) -> None:
    # Given a request of which two tokens came, that its client has not seen
    worker = await doomed(gateway, "c")
    task, first = await begin(gateway)
    assert first.wants_ids
    gateway.dispatcher.place(first, worker)
    worker.emit(first.sid, 0, 1, "Once", ids=[901])
    worker.emit(first.sid, 1, 1, " upon", ids=[902])
    await asyncio.sleep(0.1)
    # When its replica dies
    await gateway.dispatcher.lose(worker)
    # Then the next one gets them with the prompt
    second = await gateway.dispatcher.submitted()
    assert unpack_ids(second.prompt) == [*unpack_ids(first.prompt), 901, 902]
    assert (second.emitted, second.max_tokens) == (2, first.max_tokens)
    # And it waits as one that comes now: while it ran it did not wait, and its start is no later than others'
    assert (second.start_ms, second.waited_ms) == (first.start_ms, 1)
    assert 0 < second.start_ms < second.deadline_ms < first.deadline_ms
    gateway.dispatcher.place(second, gateway.worker)
    gateway.worker.emit(second.sid, 2, 1, " a time", ids=[903])
    gateway.worker.finish(second.sid, "stop", output=3)
    response = await task
    assert content(response) == "Once upon a time"
    assert response.json()["usage"]["completion_tokens"] == 3
    record = gateway.usage_of(first.request_id)
    prompt = len(unpack_ids(first.prompt))
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("completed", prompt, 3)
    assert (record.replica_attempts, record.recomputed_tokens) == (2, prompt + 2)


async def test_it_goes_on_twice_and_ends_in_the_queue_with_what_it_used(gateway: GatewayProcess) -> None:
    task, submit = await begin(gateway)
    prompt = unpack_ids(submit.prompt)
    for number in range(2):
        worker = await doomed(gateway, f"d{number}")
        gateway.dispatcher.place(submit, worker)
        worker.emit(submit.sid, number, 1, "x", ids=[700 + number])
        await asyncio.sleep(0.1)
        await gateway.dispatcher.lose(worker)
        submit = await gateway.dispatcher.submitted()
    assert unpack_ids(submit.prompt) == [*prompt, 700, 701]
    task.cancel()
    cancelled = 0
    while cancelled != submit.sid:  # those of its lost attempts come too
        cancelled = (await asyncio.wait_for(gateway.dispatcher.cancels.get(), WAIT_S)).sid
    await gateway.idle()
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("cancelled", len(prompt), 2)
    assert (record.replica_attempts, record.recomputed_tokens) == (3, 2 * len(prompt) + 1 + 2)


async def test_a_stream_goes_on_visibly_where_its_tenant_wants_that(gateway: GatewayProcess) -> None:
    # Given a stream with two tokens, of a tenant that wants it to go on
    worker = await doomed(gateway, "i")
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    path, key = "/v1/chat/completions", gateway.authorization("continuing")
    task = asyncio.create_task(gateway.post(path, body, key))
    first = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(first, worker)
    worker.emit(first.sid, 0, 2, "Once upon", ids=[901, 902])
    await asyncio.sleep(0.1)
    # When its replica dies
    await gateway.dispatcher.lose(worker)
    second = await gateway.dispatcher.submitted()
    await asyncio.sleep(0.1)
    gateway.dispatcher.place(second, gateway.worker)
    gateway.worker.emit(second.sid, 2, 1, " a time", ids=[903])
    gateway.worker.finish(second.sid, "stop", prompt=21, output=3)
    # Then it goes on after a comment that says so, and is one row
    response = await task
    before, after = response.body.split(b": resumed attempt=2\n")
    assert b"Once upon" in before
    assert b" a time" in after
    assert response.body.endswith(b"data: [DONE]\n\n")
    assert b'"completion_tokens":3' in after
    record = gateway.usage_of(first.request_id)
    assert (record.outcome, record.output_tokens) == ("completed", 3)


async def test_over_a_socket_it_goes_on_after_a_frame_that_says_so(gateway: GatewayProcess) -> None:
    worker = await doomed(gateway, "j")
    async with socket_open(gateway, gateway.keys["continuing"]) as client:
        await client.create("one")
        first = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(first, worker)
        worker.emit(first.sid, 0, 1, "Once", ids=[901])
        await client.receive_until("chunk")
        await gateway.dispatcher.lose(worker)
        second = await gateway.dispatcher.submitted()
        frame = await client.receive_until("request.continued")
        assert frame == {"type": "request.continued", "id": "one", "attempt": 2}
        gateway.dispatcher.place(second, gateway.worker)
        gateway.worker.emit(second.sid, 1, 1, " more", ids=[902])
        gateway.worker.finish(second.sid, "stop", output=2)
        (told,) = await client.ended("one")
        assert told.text == "Once more"


async def test_official_clients_read_over_the_mark(gateway: GatewayProcess) -> None:
    worker = await doomed(gateway, "k")
    async with AsyncOpenAI(
        base_url=gateway.base_url, api_key=gateway.keys["continuing"], max_retries=0
    ) as client:
        pending = asyncio.create_task(client.chat.completions.create(**BODY, stream=True))
        first = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(first, worker)
        worker.emit(first.sid, 0, 1, "Once", ids=[901])
        stream = await pending
        await gateway.dispatcher.lose(worker)
        second = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(second, gateway.worker)
        gateway.worker.emit(second.sid, 1, 1, " more", ids=[902])
        gateway.worker.finish(second.sid, "stop", output=2)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == "Once more"


async def test_a_stream_ends_where_its_tenant_did_not_ask_for_more(gateway: GatewayProcess) -> None:
    worker = await doomed(gateway, "e")
    task, submit = await begin(gateway, stream=True)
    assert not submit.wants_ids
    gateway.dispatcher.place(submit, worker)
    worker.emit(submit.sid, 0, 1, "Once")
    await asyncio.sleep(0.1)
    await gateway.dispatcher.lose(worker)
    response = await task
    assert b'"code":"replica_lost"' in response.body
    assert gateway.dispatcher.submits.empty()


@pytest.mark.parametrize("ids", [None, [], [1, 2]])
async def test_ids_that_are_not_those_of_all_tokens_continue_nothing(
    gateway: GatewayProcess, ids: list[int] | None
) -> None:
    worker = await doomed(gateway, f"f{len(ids or []) + (ids is None)}")
    task, submit = await begin(gateway)
    gateway.dispatcher.place(submit, worker)
    worker.emit(submit.sid, 0, 1, "Once", ids=ids)
    await asyncio.sleep(0.1)
    await gateway.dispatcher.lose(worker)
    response = await task
    assert (response.status, response.json()["error"]["code"]) == (503, "replica_lost")
