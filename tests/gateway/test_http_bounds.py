"""What a connection may cost before a request is accepted: headers, framing, waiting requests, idle ones."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.raw import RawConnection, resident_bytes

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
KIB = 1024
MIB = 1024 * KIB
WAIT_S = 5.0
GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()


async def sent(gateway: GatewayProcess, data: bytes) -> RawConnection:
    connection = await RawConnection.open(gateway.port)
    connection.writer.write(data)
    return connection


async def refused(connection: RawConnection, status: int, code: str) -> None:
    """The answer comes, in the envelope, and the connection ends."""
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (status, code)
    assert response.headers["connection"] == "close"
    assert len(response.headers["x-request-id"]) == 36
    await asyncio.wait_for(connection.closed(), WAIT_S)
    connection.close()


def authorized(gateway: GatewayProcess, head: bytes) -> bytes:
    return head + gateway.authorization().encode() + b"\r\n\r\n"


async def flood(connection: RawConnection, piece: bytes, size: int) -> int:
    """Bytes written until `size`, or until the connection was cut."""
    written = 0
    try:
        while written < size:
            connection.writer.write(piece)
            await connection.writer.drain()
            written += len(piece)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return written


@pytest.mark.parametrize("piece", [b"a: " + b"x" * 64 * KIB + b"\r\n", b"x" * 64 * KIB, b"b: y\r\n" * 10_000])
async def test_endless_headers_are_cut_and_cost_no_memory(gateway: GatewayProcess, piece: bytes) -> None:
    await gateway.metric("tasks")
    before = resident_bytes(gateway.process.pid)
    connection = await sent(gateway, GET + b"long: ")
    written = await flood(connection, piece, 20 * MIB)
    grown = resident_bytes(gateway.process.pid) - before
    assert written < 20 * MIB
    assert grown < 20 * MIB
    connection.close()


@pytest.mark.parametrize(
    "head",
    [
        GET + b"long: " + b"x" * 37 * KIB,
        GET + b"long: " + b"x" * 33 * KIB + b"\r\n\r\n",
        GET + b"a: b\r\n" * 100 + b"\r\n",
        GET + b"a: " + b"x" * 8 * KIB + b"\r\nb: " + b"x" * 25 * KIB + b"\r\n\r\n",
        b"GET /" + b"x" * 33 * KIB + b" HTTP/1.1\r\n\r\n",
        b"\r\n" * 20 * KIB,
    ],
    ids=["unended", "one", "many", "two", "line", "blank"],
)
async def test_too_large_headers_are_answered(gateway: GatewayProcess, head: bytes) -> None:
    await refused(await sent(gateway, head), 431, "headers_too_large")


async def test_a_refused_client_that_goes_on_sending_is_cut(gateway: GatewayProcess) -> None:
    connection = await sent(gateway, b"nonsense\r\n\r\n")
    assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 400

    for _ in range(80):  # 4 s
        if not await flood(connection, b"x", 1):
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the connection is still there")
    connection.close()


async def test_headers_within_the_bound_are_served(gateway: GatewayProcess) -> None:
    head = GET + b"a: b\r\n" * 98 + b"long: " + b"x" * 30 * KIB + b"\r\n\r\n"
    connection = await sent(gateway, head * 3)
    for _ in range(3):
        assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 200
    connection.close()


@pytest.mark.parametrize(
    "rest",
    [
        b"0\r\n" + b"trailer: x\r\n" * 101,
        b"0\r\ntrailer: " + b"x" * 40 * KIB,
        b"1;" + b"x" * 40 * KIB,
    ],
    ids=["trailers", "trailer", "extension"],
)
async def test_framing_of_a_body_is_bounded(gateway: GatewayProcess, rest: bytes) -> None:
    await refused(await sent(gateway, authorized(gateway, CHUNKED) + rest), 431, "headers_too_large")


async def test_trailers_are_dropped(gateway: GatewayProcess) -> None:
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    trailer = gateway.authorization().encode()
    connection = await sent(gateway, CHUNKED + b"\r\n" + chunk + trailer + b"\r\n\r\n")
    assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 401
    connection.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 401
    connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET //[ HTTP/1.1\r\nhost: x\r\nhost\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_answered_in_the_envelope(gateway: GatewayProcess, data: bytes) -> None:
    await refused(await sent(gateway, data), 400, "invalid_http")


async def test_a_broken_chunk_is_answered_in_the_envelope(gateway: GatewayProcess) -> None:
    await refused(await sent(gateway, authorized(gateway, CHUNKED) + b"zz\r\n"), 400, "invalid_http")


async def streaming(gateway: GatewayProcess) -> tuple[RawConnection, Any]:
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", CHAT, BODY, gateway.authorization())
    return connection, await gateway.dispatcher.submitted()


@pytest.mark.parametrize(
    "behind", [(GET + b"\r\n") * 20_000, b"GET / HTTP/1.1\r\na: " + b"x" * 40 * KIB, b"nonsense\r\n\r\n"]
)
async def test_what_waits_behind_a_request_is_bounded_and_harms_nothing(
    gateway: GatewayProcess, behind: bytes
) -> None:
    connection, submit = await streaming(gateway)
    connection.writer.write(behind)
    gateway.dispatcher.place(submit, gateway.worker)
    await gateway.metric("tasks")
    gateway.worker.emit(submit.sid, 0, 1, "one")
    gateway.worker.finish(submit.sid, "stop", output=1)
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert response.body.endswith(b"data: [DONE]\n\n")
    served = 0
    while (await connection.reader.read(1)) == b"H":
        assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 200
        served += 1
    assert served == (8 if behind.startswith(GET) else 0)
    connection.close()


async def test_a_few_requests_at_once_are_served_in_order(gateway: GatewayProcess) -> None:
    connection = await RawConnection.open(gateway.port)
    connection.send("GET", "/healthz")
    connection.send("GET", "/v1/nothing")
    connection.send("GET", "/healthz")
    statuses = [(await asyncio.wait_for(connection.response(), WAIT_S)).status for _ in range(3)]
    assert statuses == [200, 404, 200]
    connection.close()


async def test_half_a_request_behind_a_running_one_does_not_cut_it(gateway: GatewayProcess) -> None:
    connection, submit = await streaming(gateway)
    connection.writer.write(GET)
    gateway.dispatcher.place(submit, gateway.worker)
    await asyncio.sleep(1.5)  # longer than the time for headers
    gateway.worker.emit(submit.sid, 0, 1, "one")
    gateway.worker.finish(submit.sid, "stop", output=1)
    assert (await asyncio.wait_for(connection.response(), WAIT_S)).body.endswith(b"data: [DONE]\n\n")
    await asyncio.wait_for(connection.closed(), WAIT_S)
    connection.close()


async def test_an_idle_connection_is_closed_whatever_trickles_in(gateway: GatewayProcess) -> None:
    blank = await sent(gateway, GET + b"\r\n\r\n")
    unread = await sent(gateway, b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx")
    for connection in (blank, unread):
        assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 200
        connection.writer.write(b"\r\n")
        await asyncio.wait_for(connection.closed(), 3)
        connection.close()
