"""Many requests over one WebSocket: each gets its own answer, whole and in order, or its own error."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from websockets.frames import Frame, Opcode

from gpuworker.wire.messages import Submit
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import echo
from tests.gateway.sockets import MESSAGES, SERVER, SocketClient, socket_open

pytestmark = pytest.mark.asyncio(loop_scope="module")

ECHO = 'Hello wörld 你好 \u2028line "end"\n'
LIMITS = {**QUICK, "max_body_bytes": 100_000, "max_socket_message_bytes": 150_000, "max_socket_requests": 40}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncIterator[GatewayProcess]:
    async with gateway_started(limits=LIMITS, server_arguments=SERVER) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    process.peers_reset()
    await process.ready()
    yield process
    await process.idle()


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: GatewayProcess) -> AsyncIterator[SocketClient]:
    """Of a gateway whose worker answers by itself."""
    with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
        async with socket_open(gateway) as opened:
            yield opened


def interleaving(gateway: GatewayProcess) -> Any:
    """A script: tokens of all requests in turn, each with a text of its own."""

    def script(submit: Submit) -> None:
        gateway.dispatcher.place(submit, gateway.worker)
        loop = asyncio.get_running_loop()

        def emit(number: int) -> None:
            if number < submit.max_tokens:
                gateway.worker.emit(submit.sid, number, 1, f"<{submit.max_tokens}.{number}>")
                loop.call_later(0.001, emit, number + 1)
            else:
                gateway.worker.finish(submit.sid, "stop", output=submit.max_tokens)

        emit(0)

    return script


async def test_concurrent_requests_are_interleaved_and_each_text_is_exact(gateway: GatewayProcess) -> None:
    with gateway.dispatcher.scripted(interleaving(gateway)):
        async with socket_open(gateway) as client:
            lengths = range(20, 60)
            for length in lengths:
                body = {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": length}
                await client.create(f"r{length}", body)
            answers = await client.ended(*(f"r{length}" for length in lengths))
    order = [told.last["seq"] for told in answers]
    for length, told in zip(lengths, answers, strict=True):
        assert told.text == "".join(f"<{length}.{number}>" for number in range(length))
        assert told.gapless()
        assert told.last == {"type": "done", "id": f"r{length}", "seq": length + 3}
    assert len(set(order)) == len(order)
    usage = {record.request_id: record for record in gateway.usage()}
    for length, told in zip(lengths, answers, strict=True):
        record = usage[told.request_id]
        assert (record.outcome, record.output_tokens) == ("completed", length)


@pytest.mark.parametrize(
    ("endpoint", "prompt"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
async def test_every_endpoint_streams_what_it_streams_over_http(
    gateway: GatewayProcess, client: SocketClient, endpoint: str, prompt: dict[str, Any]
) -> None:
    body = {"model": MODEL, **prompt, "stream": True}
    told = await client.chat("a", body=body, endpoint=endpoint)
    response = await gateway.post(endpoint, body)
    lines = [line for line in response.body.decode().split("\n") if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [shape(chunk["data"]) for chunk in told.chunks] == [shape(event) for event in events]
    assert told.last["type"] == "done"
    assert told.gapless()
    assert gateway.usage_of(told.request_id).outcome == "completed"


@pytest.mark.parametrize(
    ("endpoint", "prompt"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": ["hello", "again"], "n": 2}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
async def test_whole_answers_come_in_one_frame(
    gateway: GatewayProcess, client: SocketClient, endpoint: str, prompt: dict[str, Any]
) -> None:
    body = {"model": MODEL, **prompt}
    if "n" in body:
        body["n"] = 1
    told = await client.chat("a", body=body, endpoint=endpoint)
    response = await gateway.post(endpoint, body)
    assert [frame["type"] for frame in told.frames] == ["request.accepted", "response"]
    assert shape(told.last["data"]) == shape(response.json())


def shape(value: Any) -> Any:
    """Without what differs between two answers to the same request."""
    if isinstance(value, dict):
        fields = {"id", "item_id", "created", "created_at", "completed_at", "system_fingerprint", "seed"}
        return {name: shape(inner) for name, inner in value.items() if name not in fields}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return value


@pytest.mark.parametrize(
    ("message", "code", "name"),
    [
        ("", "invalid_json", None),
        ("{", "invalid_json", None),
        ("[" * 100_000, "invalid_value", None),
        ('{"type":"request.create","id":"a","body":' + "[" * 50_000, "invalid_json", None),
        ("[]", "invalid_value", None),
        ('{"type":"nothing","id":"a"}', "invalid_value", "a"),
        ('{"type":"request.create","id":"a"}', "invalid_value", "a"),
        ('{"type":"request.create","body":{}}', "invalid_value", None),
        ('{"type":"request.create","id":"","body":{}}', "invalid_value", None),
        ('{"type":"request.create","id":"%s","body":{}}' % ("x" * 129), "invalid_value", None),
        ('{"type":"request.create","id":"a","body":{},"more":1}', "invalid_value", "a"),
        ('{"type":"request.create","id":"a","body":{},"window":0}', "invalid_value", "a"),
        ('{"type":"request.create","id":"a","body":{},"deadline_ms":0}', "invalid_value", "a"),
        ('{"type":"request.create","id":"a","body":{},"endpoint":"/"}', "invalid_value", "a"),
        ('{"type":"request.create","id":"a","body":[]}', "invalid_type", "a"),
        ('{"type":"request.create","id":"a","body":{}}', "missing_required_parameter", "a"),
        ('{"type":"request.create","id":"a","body":{"model":"no","messages":[]}}', "invalid_value", "a"),
        ('{"type":"request.create","id":"a","body":"%s"}' % ("x" * 100_001), "request_too_large", "a"),
        ('{"type":"x","id":"a","body":"%s"}' % ("x" * 150_001), "request_too_large", None),
        ('{"type":"request.resume","id":"a","request_id":"no"}', "request_not_found", "a"),
        ('{"type":"ack","id":"a","seq":-1}', "invalid_value", "a"),
        ('{"type":"cancel"}', "invalid_value", None),
    ],
)
async def test_what_is_wrong_gets_an_error_frame_and_the_socket_stays(
    client: SocketClient, message: str, code: str, name: str | None
) -> None:
    await client.connection.send(message)
    frame = await client.receive_until("error")
    assert (frame["error"]["code"], frame["id"]) == (code, name)
    assert frame["final"] is (name is not None)
    assert (await client.chat("b")).text == ECHO


async def test_an_id_is_free_again_when_its_request_has_ended(gateway: GatewayProcess) -> None:
    async with socket_open(gateway) as client:
        await client.create("a")
        submit = await gateway.dispatcher.submitted()
        await client.create("a")
        frame = await client.receive_until("error")
        assert (frame["id"], frame["final"], frame["error"]["param"]) == ("a", False, "id")
        client.told.clear()
        echo(gateway.dispatcher)(submit)
        (told,) = await client.ended("a")
        assert told.text == ECHO
        client.told.clear()
        with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
            assert (await client.chat("a")).text == ECHO


async def test_more_requests_than_a_socket_may_run_are_refused(gateway: GatewayProcess) -> None:
    async with socket_open(gateway) as client:
        for number in range(41):
            await client.create(f"r{number}")
        (refused,) = await client.ended("r40")
        assert (refused.last["status"], refused.last["error"]["code"]) == (429, "concurrent_requests")
        assert refused.last["error"]["limit"]["limit"] == 40
        assert refused.last["retry_after_ms"] > 0
        for _ in range(40):
            echo(gateway.dispatcher)(await gateway.dispatcher.submitted())
        for told in await client.ended(*(f"r{number}" for number in range(40))):
            assert told.text == ECHO


async def test_binary_and_fragmented_messages_are_frames_too(client: SocketClient) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    message = json.dumps({"type": "request.create", "id": "a", "body": body})
    await client.connection.send(message.encode())
    (told,) = await client.ended("a")
    assert told.text == ECHO
    message = message.replace('"a"', '"ü"')
    await client.connection.send([message[at : at + 7] for at in range(0, len(message), 7)])
    (told,) = await client.ended("ü")
    assert told.text == ECHO


@pytest.mark.parametrize("how", ["too large", "too many fragments", "no UTF-8", "unmasked nonsense"])
async def test_what_is_no_websocket_message_closes_it(client: SocketClient, how: str) -> None:
    raw = client.connection.transport
    if how == "too large":
        await client.connection.send("x" * 200_001)
    elif how == "too many fragments":
        first = Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=True)
        raw.write(first + Frame(Opcode.CONT, b"", fin=False).serialize(mask=True) * 5000)
    elif how == "no UTF-8":
        raw.write(Frame(Opcode.TEXT, b"\xff").serialize(mask=True))
    else:
        raw.write(b"\xff\xff\xff\xff")
    code, _ = await client.closed()
    assert code == {"too large": 1009, "too many fragments": 1009, "no UTF-8": 1007}.get(how, 1002)
