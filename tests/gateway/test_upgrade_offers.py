"""Requests that offer another protocol are answered in this one; heads that are ambiguous are refused."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from gateway.http.head import is_handshake
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import WAIT_S, echo
from tests.gateway.raw import RawConnection, Response
from tests.gateway.sockets import SERVER

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
SOCKET = "/v1/stream"
KIB = 1024
LANES = 24
H2C = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = "connection: Upgrade\r\nupgrade: websocket\r\n"
KEYED = "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def process() -> AsyncIterator[GatewayProcess]:
    async with gateway_started(limits=QUICK, server_arguments=SERVER) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="package")
async def gateway(process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    process.peers_reset()
    await process.ready()
    yield process
    await process.idle()


@pytest.fixture
def echoing(gateway: GatewayProcess) -> Iterator[GatewayProcess]:
    with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
        yield gateway


def post(gateway: GatewayProcess, offer: str, path: str = CHAT, *, chunked: bool = False) -> bytes:
    framing = "transfer-encoding: Chunked" if chunked else f"content-length: {len(BODY)}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\n{gateway.authorization()}\r\n{offer}{framing}\r\n\r\n".encode()
    )
    return head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY)


async def sent(gateway: GatewayProcess, data: bytes) -> RawConnection:
    connection = await RawConnection.open(gateway.port)
    connection.writer.write(data)
    return connection


async def answer(connection: RawConnection) -> Response:
    return await asyncio.wait_for(connection.response(), WAIT_S)


def text_of(response: Response) -> str:
    assert response.status == 200, response.body
    return str(response.json()["choices"][0]["message"]["content"])


async def refused(gateway: GatewayProcess, data: bytes) -> None:
    """Answered in the envelope, and nothing behind it is read."""
    connection = await sent(gateway, data + HEALTH)
    response = await answer(connection)
    assert (response.status, response.json()["error"]["code"]) == (400, "invalid_http")
    assert response.headers["connection"] == "close"
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(connection.reader.read(), WAIT_S) == b""
    connection.close()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    "offer",
    [
        H2C,
        "connection: upgrade\r\nupgrade: foo\r\n",
        "upgrade: TLS/1.0\r\nconnection: keep-alive, Upgrade\r\n",
    ],
    ids=["h2c", "foo", "tls"],
)
async def test_an_offer_is_ignored_and_all_that_follows_is_served(
    echoing: GatewayProcess, offer: str, *, chunked: bool
) -> None:
    request = post(echoing, offer, chunked=chunked)
    before = echoing.log.read_text().count("\n")
    connection = await sent(echoing, request + HEALTH + request)
    assert text_of(await answer(connection)).startswith("Hello")
    assert (await answer(connection)).status == 200
    assert text_of(await answer(connection)).startswith("Hello")
    connection.writer.write(request)
    assert text_of(await answer(connection)).startswith("Hello")
    connection.close()
    assert "upgrade" not in "\n".join(echoing.log.read_text().split("\n")[before:]).lower()


async def test_an_offer_split_at_every_byte_is_the_same_request(echoing: GatewayProcess) -> None:
    data = post(echoing, H2C) + HEALTH
    points = iter(range(1, len(data)))
    answers: list[str] = []

    async def lane() -> None:
        connection = await RawConnection.open(echoing.port)
        for point in points:
            connection.writer.write(data[:point])
            await asyncio.sleep(0.003)  # so that it is read alone
            connection.writer.write(data[point:])
            answers.append(text_of(await answer(connection)))
            assert (await answer(connection)).status == 200
        connection.close()

    await asyncio.gather(*(lane() for _ in range(LANES)))
    assert len(answers) == len(data) - 1
    assert len(set(answers)) == 1


async def test_an_offer_that_ends_its_connection_ends_it(echoing: GatewayProcess) -> None:
    connection = await sent(echoing, post(echoing, "connection: close, Upgrade\r\nupgrade: h2c\r\n"))
    assert (await answer(connection)).headers["connection"] == "close"
    await asyncio.wait_for(connection.closed(), WAIT_S)
    connection.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("a: b\r\n" * 90 + "long: " + "x" * 30 * KIB + "\r\n", 200),
        ("a: b\r\n" * 100, 431),
        ("long: " + "x" * 33 * KIB + "\r\n", 431),
    ],
)
async def test_an_offer_is_bounded_as_any_request(gateway: GatewayProcess, head: str, status: int) -> None:
    request = f"GET /healthz HTTP/1.1\r\nhost: x\r\n{H2C}{head}\r\n".encode()
    connection = await sent(gateway, request * 3)
    for _ in range(3 if status == 200 else 1):
        assert (await answer(connection)).status == status
    connection.close()


async def test_offers_that_wait_are_bounded(gateway: GatewayProcess) -> None:
    request = f"GET /healthz HTTP/1.1\r\nhost: x\r\n{H2C}\r\n".encode()
    connection = await sent(gateway, request * 200)
    served = 0
    while (await asyncio.wait_for(connection.reader.read(1), WAIT_S)) == b"H":
        assert (await answer(connection)).status == 200
        served += 1
    assert 8 <= served < 200
    connection.close()


@pytest.mark.parametrize("path", [SOCKET, CHAT, "/healthz", "/nothing"])
@pytest.mark.parametrize("framing", [f"content-length: {len(BODY)}", "transfer-encoding: chunked"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_a_websocket_offer_with_a_body_is_a_plain_request(
    gateway: GatewayProcess, method: str, framing: str, path: str
) -> None:
    request = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{WEBSOCKET}{KEYED}"
    plain = await sent(gateway, f"{method} {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode())
    offered = await sent(gateway, f"{request}{framing}\r\n\r\n".encode())  # no body comes
    for connection in (plain, offered):
        connection.writer.write(BODY if "length" in framing else b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    expected, response = await answer(plain), await answer(offered)
    assert (response.status, response.headers.keys()) == (expected.status, expected.headers.keys())
    plain.close()
    offered.close()


@pytest.mark.parametrize("method", ["POST", "HEAD", "DELETE", "OPTIONS"])
async def test_a_websocket_offer_that_is_no_get_is_a_plain_request(
    gateway: GatewayProcess, method: str
) -> None:
    request = f"{method} {SOCKET} HTTP/1.1\r\nhost: x\r\n{WEBSOCKET}{KEYED}\r\n".encode()
    connection = await sent(gateway, request + HEALTH)
    head = await asyncio.wait_for(connection.head(), WAIT_S)
    assert head.status in (204, 401, 404, 405, 426)
    connection.close()


async def test_twenty_offers_with_bodies_are_answered_within_a_second(gateway: GatewayProcess) -> None:
    request = f"POST {SOCKET} HTTP/1.1\r\nhost: x\r\n{WEBSOCKET}{KEYED}content-length: 1000\r\n\r\n"
    began_at = time.monotonic()
    connections = [await sent(gateway, request.encode()) for _ in range(20)]
    for connection in connections:
        assert (await answer(connection)).status in (401, 404, 405)
        connection.close()
    assert time.monotonic() - began_at < 1


async def test_a_handshake_behind_a_request_takes_nothing_from_it(echoing: GatewayProcess) -> None:
    handshake = f"GET {SOCKET} HTTP/1.1\r\nhost: x\r\n{echoing.authorization()}\r\n{WEBSOCKET}{KEYED}\r\n"
    connection = await sent(echoing, post(echoing, "") + handshake.encode() + HEALTH)
    assert text_of(await answer(connection)).startswith("Hello")
    assert (await answer(connection)).status in (404, 405, 426)
    assert (await answer(connection)).status == 200
    connection.close()


async def test_a_handshake_is_still_one(gateway: GatewayProcess) -> None:
    handshake = f"GET {SOCKET} HTTP/1.1\r\nhost: x\r\n{gateway.authorization()}\r\n{WEBSOCKET}{KEYED}"
    for more in ("", "content-length: 0\r\n"):
        connection = await sent(gateway, (handshake + more + "\r\n").encode())
        assert (await asyncio.wait_for(connection.head(), WAIT_S)).status == 101
        connection.close()


@pytest.mark.parametrize("end", ["", "\r", "\r\n", "content-length: 7\r\n", "sec-websocket-"])
async def test_a_handshake_without_an_end_is_cut_in_time(gateway: GatewayProcess, end: str) -> None:
    connection = await sent(gateway, f"GET {SOCKET} HTTP/1.1\r\nhost: x\r\n{WEBSOCKET.strip()}{end}".encode())
    began_at = time.monotonic()
    await asyncio.wait_for(connection.closed(), WAIT_S)
    assert time.monotonic() - began_at < 3
    connection.close()


@pytest.mark.parametrize("path", [SOCKET, "/nothing"])
@pytest.mark.parametrize("header", ["long: " + "x" * 9 * KIB, "a: \x80é", "a: b"])
async def test_a_handshake_that_the_websocket_parser_refuses_is_answered(
    gateway: GatewayProcess, header: str, path: str
) -> None:
    head = f"GET {path} HTTP/1.1\r\nhost: x\r\n{WEBSOCKET}{KEYED}{header}\r\n\r\n".encode()
    connection = await sent(gateway, head)
    assert (await answer(connection)).status in (400, 401, 403, 404)
    await asyncio.wait_for(connection.closed(), WAIT_S)
    connection.close()


@pytest.mark.parametrize(
    "coding",
    [
        "gzip, chunked",
        "chunked, chunked",
        "identity",
        "chunked\r\ntransfer-encoding: chunked",
        "xchunked",
        "gzip",
    ],
)
async def test_a_coding_that_is_not_chunked_is_refused(gateway: GatewayProcess, coding: str) -> None:
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{gateway.authorization()}\r\ntransfer-encoding: {coding}\r\n\r\n"
    )
    await refused(gateway, head.encode() + chunks)


@pytest.mark.parametrize(
    "head",
    [
        "GET /healthz HTTP/1.1\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        "GET /healthz HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\n{H2C}content-length: 3\r\n\r\nabc",
        "CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n",
        "CONNECT x:80 HTTP/1.1\r\n\r\n",
        f"POST {CHAT} HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_an_ambiguous_head_is_refused(gateway: GatewayProcess, head: str) -> None:
    await refused(gateway, head.encode())


async def test_a_client_of_http_1_0_needs_no_host(gateway: GatewayProcess) -> None:
    connection = await sent(gateway, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert (await answer(connection)).status == 200
    await asyncio.wait_for(connection.closed(), WAIT_S)
    connection.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("stream", [False, True])
async def test_curl_that_offers_http_2_is_served(echoing: GatewayProcess, *, stream: bool) -> None:
    url = f"http://127.0.0.1:{echoing.port}{CHAT}"
    body = json.dumps({**json.loads(BODY), "stream": stream})
    arguments = ["-sS", "--http2", "--max-time", "5", "-H", echoing.authorization(), "-d", body, url, url]
    process = await asyncio.create_subprocess_exec(
        "curl", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert output.count(b"[DONE]" if stream else b'"finish_reason":"stop"') == 2


@pytest.mark.parametrize(
    ("method", "version", "headers", "expected"),
    [
        (b"GET", "1.1", [], True),
        (b"GET", "1.1", [(b"content-length", b"0")], True),
        (b"GET", "1.1", [(b"content-length", b"1")], False),
        (b"GET", "1.1", [(b"transfer-encoding", b"chunked")], False),
        (b"GET", "1.0", [], False),
        (b"POST", "1.1", [], False),
    ],
)
async def test_what_opens_a_socket(method: bytes, version: str, headers: Any, *, expected: bool) -> None:
    assert is_handshake(method, version, headers) is expected
