"""The reference as it is served: document, page, and examples that run as they are printed."""

import asyncio
import contextlib
import html
import io
import json
import re

import pytest

from gateway.openapi.page import CONTENT_SECURITY_POLICY
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.raw import RawConnection, request

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT_PATH = "/v1/chat/completions"
EXAMPLES = {  # what they print, when the worker answers five words
    "createChatCompletion": "Hello wörld 你好",
    "createCompletion": "Hello wörld 你好",
    "createResponse": "Hello wörld 你好",
    "createMessage": "Hello wörld 你好",
    "listModels": "tiny",
    "getModel": "sluice",
    "countMessageTokens": "2",
}


async def test_the_document_needs_no_key(gateway: GatewayProcess) -> None:
    response = await request(gateway.port, "GET", "/v1/openapi.json")
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert json.loads(response.body)["openapi"] == "3.1.0"


async def test_the_page_needs_no_key_and_allows_no_script(gateway: GatewayProcess) -> None:
    response = await request(gateway.port, "GET", "/docs")
    assert (response.status, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert response.body.startswith(b"<!doctype html>")


@pytest.mark.parametrize("operation_id", EXAMPLES)
async def test_examples_run_as_they_are_printed(echoing: GatewayProcess, operation_id: str) -> None:
    document = json.loads(await asked_as(echoing, f"127.0.0.1:{echoing.port}", "/v1/openapi.json"))
    (source,) = [
        sample["source"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for sample in operation["x-codeSamples"]
        if operation["operationId"] == operation_id and sample["lang"] == "Python"
    ]
    source = source.replace("sk-slc-...", echoing.key)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        await asyncio.to_thread(exec, source, {})
    assert EXAMPLES[operation_id] in printed.getvalue()


async def test_the_page_names_the_address_it_was_asked_at(gateway: GatewayProcess) -> None:
    models = await request(gateway.port, "GET", "/v1/models", b"", f"authorization: Bearer {gateway.key}")
    first = json.loads(models.body)["data"][0]["id"]
    for host in (f"127.0.0.1:{gateway.port}", f"localhost:{gateway.port}"):
        page = await asked_as(gateway, host)
        assert f"curl http://{host}/v1/chat/completions".encode() in page
        assert re.findall(r'^ +"model": "(.*)",?$', html.unescape(page.decode()), re.MULTILINE)[0] == first
    assert b"<script" not in await asked_as(gateway, '"><script>')


async def asked_as(gateway: GatewayProcess, host: str, path: str = "/docs") -> bytes:
    connection = await RawConnection.open(gateway.port)
    try:
        connection.writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        return (await asyncio.wait_for(connection.response(), 20)).body
    finally:
        connection.close()


async def test_moderations_need_a_key(gateway: GatewayProcess) -> None:
    stranger = await request(gateway.port, "POST", "/v1/moderations", b"{}")
    assert (stranger.status, json.loads(stranger.body)["error"]["code"]) == (401, "invalid_api_key")
    known = await request(
        gateway.port, "POST", "/v1/moderations", b"{}", f"authorization: Bearer {gateway.key}"
    )
    assert (known.status, json.loads(known.body)["error"]["code"]) == (501, "not_implemented")


async def test_the_socket_asks_for_an_upgrade(gateway: GatewayProcess) -> None:
    response = await request(gateway.port, "GET", "/v1/stream")
    assert (response.status, response.headers["upgrade"]) == (426, "websocket")
    assert json.loads(response.body)["error"]["code"] == "upgrade_required"
    assert (await request(gateway.port, "POST", "/v1/stream", b"{}")).status == 405


@pytest.mark.parametrize(
    ("value", "status", "is_numbered"),
    [("1", 200, True), ("True", 200, True), ("0", 200, False), ("FALSE", 200, False)]
    + [(wrong, 400, False) for wrong in ("yes", "2", "on", "")],
)
async def test_what_opts_in_to_resuming(
    echoing: GatewayProcess, value: str, status: int, is_numbered: bool
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = (f"authorization: Bearer {echoing.key}", f"x-stream-resume: {value}")
    response = await request(echoing.port, "POST", CHAT_PATH, json.dumps(body).encode(), *headers)
    assert (response.status, b"\nid: " in b"\n" + response.body) == (status, is_numbered)
    if status == 400:
        error = json.loads(response.body)["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "x-stream-resume")
