"""Requests as no SDK sends them: in pieces, half closed, dripping, with two lengths, many idle."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import WAIT_S, echo
from tests.gateway.raw import RawConnection, Response, request, resident_bytes

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
LIMITS = {**QUICK, "body_timeout_s": 0.5}
KEEP_ALIVE_S = 2
HEADER_TIMEOUT_S = 1.0  # of tests.gateway.server.QuickProtocol
KIB = 1024
MIB = 1024 * KIB
LANES = 24


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def raw_process() -> AsyncIterator[GatewayProcess]:
    arguments = ("--timeout-keep-alive", str(KEEP_ALIVE_S))
    async with gateway_started(limits=LIMITS, server_arguments=arguments) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="package")
async def raw(raw_process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    raw_process.peers_reset()
    await raw_process.ready()
    yield raw_process
    await raw_process.idle()


def body(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def head(gateway: GatewayProcess, framing: str) -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{gateway.authorization()}\r\n{framing}\r\n\r\n".encode()


def sized(gateway: GatewayProcess, **fields: Any) -> bytes:
    return head(gateway, f"content-length: {len(body(**fields))}") + body(**fields)


def chunked(gateway: GatewayProcess) -> bytes:
    data = body()
    parts = data[:7], data[7:40], data[40:]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head(gateway, "transfer-encoding: chunked") + framed + b"0\r\nt: railer\r\n\r\n"


def text_of(response: Response) -> str:
    assert response.status == 200
    return str(response.json()["choices"][0]["message"]["content"])


async def answered(connection: RawConnection) -> str:
    return text_of(await asyncio.wait_for(connection.response(), WAIT_S))


@pytest.mark.parametrize("kind", ["sized", "chunked", "pair"])
async def test_a_request_split_at_every_byte_is_the_same_request(raw: GatewayProcess, kind: str) -> None:
    """A pair: the second request of one write; each lane is one kept connection."""
    data = chunked(raw) if kind == "chunked" else sized(raw) * (2 if kind == "pair" else 1)
    points = iter(range(1, len(data)))
    answers: list[str] = []

    async def lane() -> None:
        connection = await RawConnection.open(raw.port)
        for point in points:
            connection.writer.write(data[:point])
            await asyncio.sleep(0.003)  # so that it is read alone
            connection.writer.write(data[point:])
            answers.extend([await answered(connection) for _ in range(2 if kind == "pair" else 1)])
        connection.close()

    with raw.dispatcher.scripted(echo(raw.dispatcher)):
        await asyncio.gather(*(lane() for _ in range(LANES)))
    assert len(answers) == (len(data) - 1) * (2 if kind == "pair" else 1)
    assert len(set(answers)) == 1


async def test_a_request_that_comes_byte_by_byte_is_served(raw: GatewayProcess) -> None:
    connection = await RawConnection.open(raw.port)
    with raw.dispatcher.scripted(echo(raw.dispatcher)):
        for byte in sized(raw):
            connection.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await answered(connection)).startswith("Hello")
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_half_closes_has_left(raw: GatewayProcess, stream: bool) -> None:
    """Its FIN looks like that of a client that is gone, so generation stops, as behind other proxies."""
    connection = await RawConnection.open(raw.port)
    connection.writer.write(sized(raw, stream=stream))
    submit = await raw.dispatcher.submitted()
    raw.dispatcher.place(submit, raw.worker)
    raw.worker.emit(submit.sid, 0, 1, "one")
    connection.writer.write_eof()
    cancel = await asyncio.wait_for(raw.worker.cancels.get(), WAIT_S)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    await asyncio.wait_for(connection.closed(), WAIT_S)
    await raw.idle()
    assert raw.usage_of(submit.request_id).outcome == "cancelled"


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
async def test_half_a_request_and_a_half_close_leave_nothing(raw: GatewayProcess, share: float) -> None:
    data = sized(raw)
    connection = await RawConnection.open(raw.port)
    connection.writer.write(data[: int(len(data) * share)])
    await asyncio.sleep(0.01)
    connection.writer.write_eof()
    await asyncio.wait_for(connection.closed(), WAIT_S)
    await raw.idle()
    assert raw.dispatcher.submits.empty()


async def test_generations_in_one_write_are_answered_in_order_one_at_a_time(raw: GatewayProcess) -> None:
    connection = await RawConnection.open(raw.port)
    connection.writer.write(sized(raw) + sized(raw, stream=True) + sized(raw, max_tokens=1))
    for number in range(3):
        submit = await raw.dispatcher.submitted()
        assert raw.dispatcher.submits.empty()
        raw.dispatcher.place(submit, raw.worker)
        raw.worker.emit(submit.sid, 0, 1, f"answer {number}")
        raw.worker.finish(submit.sid, "stop", output=1)
        response = await asyncio.wait_for(connection.response(), WAIT_S)
        assert f"answer {number}".encode() in response.body
    connection.close()


async def test_what_waits_behind_a_client_that_left_is_never_begun(raw: GatewayProcess) -> None:
    connection = await RawConnection.open(raw.port)
    connection.writer.write(sized(raw, stream=True) * 3)
    submit = await raw.dispatcher.submitted()
    raw.dispatcher.place(submit, raw.worker)
    connection.close()
    await asyncio.wait_for(raw.worker.cancels.get(), WAIT_S)
    await raw.idle()
    assert raw.dispatcher.submits.empty()


@pytest.mark.parametrize(
    "framing",
    [
        "content-length: {size}\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: {size}",
        "content-length: {size}\r\ncontent-length: 5",
        "content-length: {size}, 5",
        "content-length: +{size}",
        "content-length: 0x{size}",
        "content-length: -1",
        "content-length: 99999999999999999999999",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: xchunked",
        "transfer-encoding : chunked",
        "content-length: {size}\r\n folded: x",
    ],
)
async def test_a_body_of_two_lengths_is_refused_and_nothing_behind_it_is_served(
    raw: GatewayProcess, framing: str
) -> None:
    """RFC 9112 §6.3: a proxy in front could see the end of the request elsewhere than we do."""
    hidden = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    connection = await RawConnection.open(raw.port)
    connection.writer.write(head(raw, framing.format(size=len(hidden))) + hidden)
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert 400 <= response.status < 500
    assert response.headers["connection"] == "close"
    assert await asyncio.wait_for(connection.reader.read(), WAIT_S) == b""
    assert raw.dispatcher.submits.empty()
    connection.close()


async def test_500_idle_connections_cost_little_and_are_closed(raw: GatewayProcess) -> None:
    await raw.metric("tasks")
    before = resident_bytes(raw.process.pid)
    idle = await asyncio.gather(*(RawConnection.open(raw.port) for _ in range(500)))
    for connection in idle:
        connection.send("GET", "/healthz")
    for connection in idle:
        assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 200
    answered_at = asyncio.get_running_loop().time()

    with raw.dispatcher.scripted(echo(raw.dispatcher)):
        took = [await seconds_of_an_answer(raw) for _ in range(20)]
    assert sorted(took)[10] < 0.1
    assert resident_bytes(raw.process.pid) - before < 500 * 32 * KIB

    for connection in idle:
        await asyncio.wait_for(connection.closed(), KEEP_ALIVE_S + 2)
    assert asyncio.get_running_loop().time() - answered_at > KEEP_ALIVE_S - 0.5
    for connection in idle:
        connection.close()


async def seconds_of_an_answer(gateway: GatewayProcess) -> float:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    assert text_of(await gateway.post(CHAT, body())).startswith("Hello")
    return loop.time() - began_at


async def drip(connection: RawConnection, data: bytes, seconds: float) -> float:
    """One byte every 20 ms until the other side closes or answers; how long that took."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    heard = asyncio.create_task(connection.reader.read(1))
    for byte in data:
        connection.writer.write(bytes([byte]))
        await asyncio.wait([heard], timeout=0.02)
        if heard.done():
            heard.exception()  # a reset: bytes were on their way when it was closed
            return loop.time() - began_at
        assert loop.time() - began_at < seconds, "it is still listened to"
    raise AssertionError("everything was taken")


async def test_dripping_headers_end_in_time_and_hold_up_nobody(raw: GatewayProcess) -> None:
    connections = [await RawConnection.open(raw.port) for _ in range(100)]
    bombs = [await RawConnection.open(raw.port) for _ in range(200)]
    await raw.metric("tasks")
    before = resident_bytes(raw.process.pid)
    for bomb in bombs:  # just under the bound, never ended
        bomb.writer.write(b"GET / HTTP/1.1\r\nlong: " + b"x" * 31 * KIB)
    slow = b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 50
    dripping = [asyncio.create_task(drip(connection, slow, WAIT_S)) for connection in connections]
    with raw.dispatcher.scripted(echo(raw.dispatcher)):
        took = [await seconds_of_an_answer(raw) for _ in range(20)]
    assert sorted(took)[10] < 0.2
    assert resident_bytes(raw.process.pid) - before < 200 * 64 * KIB
    for seconds in await asyncio.gather(*dripping):
        assert seconds < HEADER_TIMEOUT_S + 1.5
    for connection in (*connections, *bombs):
        with suppress(ConnectionResetError):
            await asyncio.wait_for(connection.closed(), WAIT_S)
        connection.close()


async def test_a_dripping_body_ends_in_time(raw: GatewayProcess) -> None:
    connection = await RawConnection.open(raw.port)
    connection.writer.write(head(raw, "content-length: 10000"))
    took = await drip(connection, b"x" * 1000, WAIT_S)
    assert took < LIMITS["body_timeout_s"] + 1.0
    assert await asyncio.wait_for(connection.reader.readexactly(14), WAIT_S) == b"TTP/1.1 408 Re"
    await asyncio.wait_for(connection.closed(), WAIT_S)
    connection.close()
    assert (await request(raw.port, "GET", "/healthz")).status == 200
