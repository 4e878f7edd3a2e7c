"""What goes wrong behind the gateway reaches the client: a status before the first byte, an event after."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gpuworker.wire.messages import Cancel, Ended, Placed, Submit, WorkerDown
from tests.gateway.harness import MODEL, GatewayProcess, gateway_started
from tests.gateway.peers import WAIT_S, WorkerPeer, end, frame, socket_address
from tests.gateway.raw import RawConnection, Response, request

pytestmark = pytest.mark.asyncio(loop_scope="package")

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def begin(gateway: GatewayProcess, **fields: Any) -> tuple["asyncio.Task[Response]", Submit]:
    task = asyncio.create_task(gateway.post("/v1/chat/completions", {**BODY, **fields}))
    return task, await gateway.dispatcher.submitted()


def events(response: Response) -> list[Any]:
    lines = response.body.decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("ended", "status", "code", "outcome"),
    [
        ({"code": "queue_full", "retry_after_ms": 2500}, 429, "queue_full", "error"),
        ({"code": "deadline_exceeded"}, 504, "deadline_exceeded", "deadline"),
        ({"code": "no_replica", "retry_after_ms": 90_000}, 503, "overloaded", "error"),
    ],
)
async def test_ended_without_a_worker(
    gateway: GatewayProcess, stream: bool, ended: dict[str, Any], status: int, code: str, outcome: str
) -> None:
    task, submit = await begin(gateway, stream=stream)
    gateway.dispatcher.send(Ended(sid=submit.sid, message="told so", **ended))
    response = await task
    error = response.json()["error"]
    assert (response.status, error["code"], error["message"]) == (status, code, "told so")
    if status in (429, 503):
        assert int(response.headers["retry-after"]) <= 60
        assert int(response.headers["retry-after-ms"]) <= 60_000
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == (outcome, 0, 0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("reason", "status", "code", "param"),
    [
        ("too_long", 400, "context_length_exceeded", "messages"),
        ("unservable", 400, "invalid_value", "messages"),
        ("invalid_grammar", 400, "invalid_value", "response_format"),
        ("misrouted", 503, "overloaded", None),
        ("a reason of a newer worker", 400, "invalid_value", "messages"),
    ],
)
async def test_refused_for_good(
    gateway: GatewayProcess, stream: bool, reason: str, status: int, code: str, param: str | None
) -> None:
    """Where trying again cannot help, nothing invites the client to. The words decide nothing."""
    task, submit = await begin(gateway, stream=stream, response_format={"type": "json_object"})
    message = "misrouted: invalid_grammar, longer than any replica can hold"
    gateway.dispatcher.send(Ended(sid=submit.sid, code="refused", message=message, reason=reason))
    response = await task
    error = response.json()["error"]
    assert (response.status, error["code"], error["message"]) == (status, code, message)
    assert error.get("param") == param
    assert ("retry-after" in response.headers) == (status == 503)
    assert gateway.usage_of(submit.request_id).outcome == "error"


@pytest.mark.parametrize(
    ("reason", "status", "code", "outcome"),
    [
        ("error", 500, "engine_error", "error"),
        ("deadline", 504, "deadline_exceeded", "deadline"),
        ("cancelled", 503, "request_cancelled", "cancelled"),
        ("gateway_lost", 500, "engine_error", "gateway_lost"),
    ],
)
async def test_ended_by_the_worker(
    gateway: GatewayProcess, reason: str, status: int, code: str, outcome: str
) -> None:
    early, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.finish(submit.sid, reason, prompt=7, output=0, message="broken")
    response = await early
    assert (response.status, response.json()["error"]["code"]) == (status, code)

    late, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "one")
    gateway.worker.finish(submit.sid, reason, output=1)
    response = await late
    assert response.status == 200
    assert b"event: error\n" in response.body
    assert b"[DONE]" not in response.body
    assert events(response)[-1]["error"]["code"] == code
    assert gateway.usage_of(submit.request_id).outcome == outcome


async def test_an_answer_that_never_came_bills_no_output_when_we_failed(gateway: GatewayProcess) -> None:
    task, submit = await begin(gateway)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 2, "two tokens")
    gateway.worker.finish(submit.sid, "error", prompt=7, output=2, message="broken")
    assert (await task).status == 500
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("error", 7, 0)


async def test_openai_client_raises_when_the_worker_dies_midway(gateway: GatewayProcess) -> None:
    worker = WorkerPeer("worker-1", socket_address(gateway.folder, "w1"), gateway.digest)
    await gateway.dispatcher.add(worker)
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0) as client:
        pending = asyncio.create_task(client.chat.completions.create(**BODY, stream=True))
        submit = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(submit, worker)
        worker.emit(submit.sid, 0, 2, "two tokens")
        stream = await pending
        received = []

        async def read() -> None:
            async for chunk in stream:
                received.append(chunk.choices[0].delta.content)
                if chunk.choices[0].delta.content == "two tokens":
                    await gateway.dispatcher.lose(worker)

        with pytest.raises(openai.APIError) as raised:
            await asyncio.wait_for(read(), WAIT_S)
    assert raised.value.code == "replica_lost"
    assert received == ["", "two tokens"]
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.output_tokens) == ("replica_lost", 2)
    assert record.prompt_tokens == len(submit.prompt) // 4


@pytest.mark.parametrize("announce", [True, False])
async def test_a_lost_worker_takes_its_own_streams_along_and_no_others(
    gateway: GatewayProcess, announce: bool
) -> None:
    worker = WorkerPeer("worker-1", socket_address(gateway.folder, "w1"), gateway.digest)
    await gateway.dispatcher.add(worker)
    task, submit = await begin(gateway, stream=True)
    other, other_submit = await begin(gateway)
    gateway.dispatcher.place(submit, worker)
    worker.emit(submit.sid, 0, 1, "x")
    gateway.dispatcher.place(other_submit, gateway.worker)
    gateway.worker.emit(other_submit.sid, 0, 1, "unharmed")
    await asyncio.sleep(0.1)
    await gateway.dispatcher.lose(worker, announce=announce)
    response = await task
    (failed,) = [event["error"] for event in events(response) if "error" in event]
    expected = "the replica was lost" if announce else "the connection to the replica was lost"
    assert failed["code"] == "replica_lost"
    assert announce or failed["message"] == expected
    assert "no connection" not in failed["message"]  # seen at once, not by the watchdog
    gateway.worker.finish(other_submit.sid, "stop", output=1)
    assert (await other).json()["choices"][0]["message"]["content"] == "unharmed"
    if not announce:
        gateway.dispatcher.send(WorkerDown(id=worker.name, incarnation=worker.incarnation, cause="late"))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_gap_ends_the_stream(gateway: GatewayProcess, stream: bool) -> None:
    task, submit = await begin(gateway, stream=stream)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "one")
    gateway.worker.emit(submit.sid, 2, 1, "three")
    response = await task
    if stream:
        assert events(response)[-1]["error"]["code"] == "stream_gap"
    else:
        assert (response.status, response.json()["error"]["code"]) == (500, "stream_gap")
    assert b"three" not in response.body
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.output_tokens) == (
        "error",
        1 if stream else 0,
    )  # what the client was given
    cancel = await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S)
    assert (cancel.sid, cancel.reason) == (submit.sid, "error")


async def test_missing_last_tokens_are_a_gap(gateway: GatewayProcess) -> None:
    task, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "one")
    gateway.worker.finish(submit.sid, "stop", output=2)
    response = await task
    assert events(response)[-1]["error"]["code"] == "stream_gap"
    assert b"[DONE]" not in response.body


async def test_frames_may_overtake_placed(gateway: GatewayProcess) -> None:
    task, submit = await begin(gateway)
    gateway.worker.emit(submit.sid, 0, 1, "early")
    await asyncio.sleep(0.05)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.finish(submit.sid, "stop", output=1)
    assert (await task).json()["choices"][0]["message"]["content"] == "early"
    assert gateway.usage_of(submit.request_id).worker == "worker-0"


async def test_a_second_replica_cannot_write_into_a_stream(gateway: GatewayProcess) -> None:
    worker = WorkerPeer("worker-1", socket_address(gateway.folder, "w1"), gateway.digest)
    await gateway.dispatcher.add(worker)
    connection = await RawConnection.open(gateway.port)
    body = json.dumps({**BODY, "stream": True}).encode()
    connection.send("POST", "/v1/chat/completions", body, gateway.authorization())
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "right")
    await connection.head()
    assert b"right" in await connection.chunk()
    worker.emit(submit.sid, 1, 1, "wrong")
    cancel = await asyncio.wait_for(worker.cancels.get(), WAIT_S)
    assert cancel.sid == submit.sid
    gateway.worker.finish(submit.sid, "stop", output=1)
    last = await connection.chunk()
    assert b"wrong" not in last
    assert last.endswith(b"data: [DONE]\n\n")
    await gateway.dispatcher.lose(worker)


async def test_a_worker_with_other_weights_never_writes_a_byte(gateway: GatewayProcess) -> None:
    other = WorkerPeer("worker-9", socket_address(gateway.folder, "w9"), "0" * 64)
    await gateway.dispatcher.add(other)
    unplaced, early = await begin(gateway)
    other.emit(early.sid, 0, 1, "wrong")
    assert (await asyncio.wait_for(other.cancels.get(), WAIT_S)).sid == early.sid
    # Whoever computes it was given it, though that was not heard yet: it is run again by another
    again = await gateway.dispatcher.submitted()
    assert (again.moves, again.digest) == (1, early.digest)
    gateway.dispatcher.place(again, gateway.worker)
    gateway.worker.emit(again.sid, 0, 1, "right")
    gateway.worker.finish(again.sid, "stop", output=1)
    assert (await unplaced).json()["choices"][0]["message"]["content"] == "right"

    # Placed there, it waits for the worker to refuse it, and for the next placing
    task, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, other)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "right")
    gateway.worker.finish(submit.sid, "stop", output=1)
    assert b"right" in (await task).body
    # And where the worker runs it all the same, it is run again by another
    task, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, other)
    other.emit(submit.sid, 0, 1, "wrong")
    assert (await asyncio.wait_for(other.cancels.get(), WAIT_S)).sid == submit.sid
    again = await gateway.dispatcher.submitted()
    assert (again.moves, again.digest) == (1, submit.digest)
    gateway.dispatcher.place(again, gateway.worker)
    gateway.worker.emit(again.sid, 0, 1, "right")
    gateway.worker.finish(again.sid, "stop", output=1)
    response = await task
    assert b"right" in response.body
    assert b"wrong" not in response.body
    await gateway.dispatcher.lose(other)


async def test_a_worker_whose_welcome_differs_is_not_listened_to(gateway: GatewayProcess) -> None:
    liar = WorkerPeer("worker-8", socket_address(gateway.folder, "w8"), gateway.digest)
    await liar.start()
    gateway.dispatcher.send(liar.up())
    liar.digest = "f" * 64  # what it really holds, and says in its Welcome
    task, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, liar)
    submit = await gateway.dispatcher.submitted()  # again, for it was not heard of
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "the truth")
    gateway.worker.finish(submit.sid, "stop", output=1)
    response = await asyncio.wait_for(task, WAIT_S)
    assert b"the truth" in response.body
    gateway.dispatcher.workers.append(liar)
    await gateway.dispatcher.lose(liar)


async def test_interleaved_streams_do_not_mix(gateway: GatewayProcess) -> None:
    opened = [await begin(gateway, stream=index % 2 == 0) for index in range(32)]
    for _, submit in opened:
        gateway.dispatcher.place(submit, gateway.worker)
    for step in range(8):
        rows = [(submit.sid, step, 1, f"<{submit.sid}.{step}>") for _, submit in opened]
        gateway.worker.send(frame(*rows[step:], *rows[:step]))
    gateway.worker.send(frame(ends=tuple(end(submit.sid, "stop", output=8) for _, submit in opened)))
    for index, (task, submit) in enumerate(opened):
        response = await task
        expected = "".join(f"<{submit.sid}.{step}>" for step in range(8))
        if index % 2:
            text = response.json()["choices"][0]["message"]["content"]
        else:
            assert response.body.endswith(b"data: [DONE]\n\n")
            text = "".join(e["choices"][0]["delta"].get("content", "") for e in events(response))
        assert text == expected


async def test_rows_nobody_waits_for_are_cancelled(gateway: GatewayProcess) -> None:
    gateway.worker.emit(987_654, 0, 1, "stray")
    cancel = await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S)
    assert cancel == Cancel(sid=987_654, reason="error")


async def test_queued_requests_outlive_a_dispatcher_restart(gateway: GatewayProcess) -> None:
    queued, queued_submit = await begin(gateway)
    running, running_submit = await begin(gateway)
    gateway.dispatcher.place(running_submit, gateway.worker)
    gateway.worker.emit(running_submit.sid, 0, 1, "still ")
    await gateway.dispatcher.stop()
    refused = await gateway.post("/v1/chat/completions", BODY)
    assert (refused.status, refused.json()["error"]["code"]) == (503, "overloaded")
    gateway.worker.emit(running_submit.sid, 1, 1, "running")
    gateway.worker.finish(running_submit.sid, "stop", output=2)
    assert (await running).json()["choices"][0]["message"]["content"] == "still running"
    await gateway.dispatcher.start()
    again = await gateway.dispatcher.submitted()
    assert again.sid == queued_submit.sid
    assert again.waited_ms > 0
    assert again.deadline_ms < queued_submit.deadline_ms
    gateway.dispatcher.place(again, gateway.worker)
    gateway.worker.emit(again.sid, 0, 1, "served")
    gateway.worker.finish(again.sid, "stop", output=1)
    assert (await queued).json()["choices"][0]["message"]["content"] == "served"


async def test_a_request_placed_but_never_begun_is_submitted_to_the_new_dispatcher(
    gateway: GatewayProcess,
) -> None:
    task, submit = await begin(gateway)
    gateway.dispatcher.send(Placed(sid=submit.sid, worker=gateway.worker.incarnation, queue_ms=0))
    await gateway.dispatcher.stop()
    await gateway.dispatcher.start()
    again = await gateway.dispatcher.submitted()
    assert again.sid == submit.sid
    gateway.dispatcher.place(again, gateway.worker)
    gateway.worker.emit(again.sid, 0, 1, "served")
    gateway.worker.finish(again.sid, "stop", output=1)
    assert (await task).json()["choices"][0]["message"]["content"] == "served"


async def test_readiness_says_what_is_missing(gateway: GatewayProcess) -> None:
    assert (await request(gateway.port, "GET", "/healthz")).status == 200
    assert (await request(gateway.port, "GET", "/readyz")).status == 200
    async with gateway_started(peers=False) as lone:
        alive = await request(lone.port, "GET", "/healthz")
        ready = await request(lone.port, "GET", "/readyz")
    assert alive.status == 200
    assert ready.status == 503
    assert "worker" in ready.json()["missing"]


async def test_headers_of_a_stream(echoing: GatewayProcess) -> None:
    connection = await RawConnection.open(echoing.port)
    body = json.dumps({**BODY, "stream": True}).encode()
    connection.send("POST", "/v1/chat/completions", body, echoing.authorization())
    response = await connection.response()
    connection.close()
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert "content-encoding" not in response.headers
    assert len(response.headers["x-request-id"]) == 36
