"""The reference as it is served: document, page, and examples that run as they are printed."""

import asyncio
import contextlib
import io
import json

import pytest

from gateway.openapi.page import CONTENT_SECURITY_POLICY
from gateway.openapi.snippets import BASE_URL
from tests.gateway.harness import GatewayProcess
from tests.gateway.raw import request

pytestmark = pytest.mark.asyncio(loop_scope="package")

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
    document = json.loads((await request(echoing.port, "GET", "/v1/openapi.json")).body)
    (source,) = [
        sample["source"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for sample in operation["x-codeSamples"]
        if operation["operationId"] == operation_id and sample["lang"] == "Python"
    ]
    assert BASE_URL in source
    source = source.replace(BASE_URL, f"http://127.0.0.1:{echoing.port}").replace("sk-slc-...", echoing.key)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        await asyncio.to_thread(exec, source, {})
    assert EXAMPLES[operation_id] in printed.getvalue()
