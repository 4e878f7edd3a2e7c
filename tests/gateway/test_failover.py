"""A replica dies under a request: another one runs it, or goes on with it, and it is one row of usage."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from gateway.upstream.failover import MOVES_MOST
from gateway.upstream.quarantine import LOST_WITH
from gpuworker.wire.messages import Submit, WorkerDown, unpack_ids
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WAIT_S, WorkerPeer, socket_address
from tests.gateway.raw import Response
from tests.gateway.sockets import socket_open

pytestmark = pytest.mark.asyncio(loop_scope="package")

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def begin(gateway: GatewayProcess, **fields: Any) -> tuple["asyncio.Task[Response]", Submit]:
    task = asyncio.create_task(gateway.post("/v1/chat/completions", {**BODY, **fields}))
    return task, await gateway.dispatcher.submitted()


async def doomed(gateway: GatewayProcess, name: str) -> WorkerPeer:
    worker = WorkerPeer(name, socket_address(gateway.folder, name), gateway.digest)
    await gateway.dispatcher.add(worker)
    return worker


def content(response: Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("announce", [True, False])
async def test_a_request_without_tokens_runs_elsewhere(
    gateway: GatewayProcess, announce: bool, stream: bool
) -> None:
    # Given a request that was placed and never heard of
    worker = await doomed(gateway, f"a{announce:d}{stream:d}")
    task, first = await begin(gateway, stream=stream)
    gateway.dispatcher.place(first, worker)
    await asyncio.sleep(0.1)
    # When its replica dies
    await gateway.dispatcher.lose(worker, announce=announce)
    # Then it is submitted again, with its age, under another number
    second = await gateway.dispatcher.submitted()
    assert second.sid != first.sid
    assert (second.request_id, second.attempt, second.prompt) == (
        first.request_id, first.attempt, first.prompt,
    )  # fmt: skip
    assert (second.moves, second.emitted) == (1, 0)
    assert second.waited_ms >= 100
    assert second.deadline_ms < first.deadline_ms
    # And another one serves it
    gateway.dispatcher.place(second, gateway.worker)
    gateway.worker.emit(second.sid, 0, 1, "unharmed")
    gateway.worker.finish(second.sid, "stop", output=1)
    response = await task
    assert response.status == 200
    assert b"unharmed" in response.body
    record = gateway.usage_of(first.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("completed", 7, 1)
    assert record.worker_incarnation == gateway.worker.incarnation
    assert (record.replica_attempts, record.lost_cause, record.recomputed_tokens) == (2, "disconnected", 0)
    if not announce:
        gateway.dispatcher.send(WorkerDown(id=worker.name, incarnation=worker.incarnation, cause="killed"))


async def test_it_is_tried_no_more_than_a_few_times(gateway: GatewayProcess) -> None:
    task, submit = await begin(gateway, stream=True)
    for number in range(MOVES_MOST + 1):
        worker = await doomed(gateway, f"b{number}")
        gateway.dispatcher.place(submit, worker)
        await asyncio.sleep(0.05)
        await gateway.dispatcher.lose(worker)
        if number < MOVES_MOST:
            submit = await gateway.dispatcher.submitted()
            assert submit.moves == number + 1
    response = await asyncio.wait_for(task, WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (503, "replica_lost")
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("replica_lost", 0, 0)
    assert (record.replica_attempts, record.lost_cause) == (MOVES_MOST + 1, "disconnected")


async def test_a_request_that_replicas_crash_of_is_not_run_again(gateway: GatewayProcess) -> None:
    # Given a request with which two replicas crash, and another that dies with them once
    poison = {"max_tokens": 13, "messages": [{"role": "user", "content": "poison"}]}
    task, submit = await begin(gateway, **poison)
    bystander, other = await begin(gateway)
    for number in range(LOST_WITH):
        worker = await doomed(gateway, f"q{number}")
        gateway.dispatcher.place(submit, worker)
        if number == 0:
            gateway.dispatcher.place(other, worker)
        await asyncio.sleep(0.05)
        await gateway.dispatcher.lose(worker, crashed=True)  # its connection's end may be noticed first
        if number == 0:
            again = [await gateway.dispatcher.submitted() for _ in range(2)]
            submit, other = sorted(again, key=lambda one: one.request_id != submit.request_id)
        elif number < LOST_WITH - 1:
            submit = await gateway.dispatcher.submitted()
    # Then with the third it is over
    response = await asyncio.wait_for(task, WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (422, "request_quarantined")
    # And it is not run again, whoever sends it
    again_sent = await gateway.post("/v1/chat/completions", {**BODY, **poison})
    assert (again_sent.status, again_sent.json()["error"]["code"]) == (422, "request_quarantined")
    assert gateway.dispatcher.submits.empty()
    # While others are
    gateway.dispatcher.place(other, gateway.worker)
    gateway.worker.emit(other.sid, 0, 1, "fine")
    gateway.worker.finish(other.sid, "stop", output=1)
    assert content(await bystander) == "fine"
    record = gateway.usage_of(other.request_id)
    assert (record.replica_attempts, record.lost_cause) == (2, "crashed")


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
    assert (second.emitted, second.max_tokens, second.start_ms) == (2, first.max_tokens, 0)
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
    cancel = await asyncio.wait_for(gateway.dispatcher.cancels.get(), WAIT_S)
    assert cancel.sid == submit.sid
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


async def test_what_the_lost_replica_still_says_is_nobodys(gateway: GatewayProcess) -> None:
    # Given a replica that lost the gateway, but not its life
    worker = await doomed(gateway, "g")
    task, first = await begin(gateway, stream=True)
    gateway.dispatcher.place(first, worker)
    await asyncio.sleep(0.1)
    assert worker.connection is not None
    worker.connection.abort("cut")
    second = await gateway.dispatcher.submitted()
    assert (await asyncio.wait_for(gateway.dispatcher.cancels.get(), WAIT_S)).sid == first.sid
    # When it is back, and goes on
    await asyncio.wait_for(worker.hello, WAIT_S)
    worker.emit(first.sid, 0, 1, "wrong")
    # Then it is stopped, and the client sees the other one's words alone
    assert (await asyncio.wait_for(worker.cancels.get(), WAIT_S)).sid == first.sid
    gateway.dispatcher.place(second, gateway.worker)
    gateway.worker.emit(second.sid, 0, 1, "right")
    gateway.worker.finish(second.sid, "stop", output=1)
    response = await task
    assert b"right" in response.body
    assert b"wrong" not in response.body
    await gateway.dispatcher.lose(worker)


async def test_a_replica_that_dies_after_the_deadline_moves_nothing(gateway: GatewayProcess) -> None:
    worker = await doomed(gateway, "h")
    task = asyncio.create_task(
        gateway.post("/v1/chat/completions", BODY, gateway.authorization(), "x-request-deadline-ms: 300")
    )
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, worker)
    await asyncio.sleep(0.5)
    await gateway.dispatcher.lose(worker)
    assert (await task).status in (503, 504)
    assert gateway.dispatcher.submits.empty()
