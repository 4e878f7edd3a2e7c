"""Errors as each client sees them: its class, our code, and how often it tries."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from tests.conformance.fronts import Front
from tests.conformance.node import ClientError, NodeClients
from tests.conformance.servers import UVICORN
from tests.gateway.harness import MODEL

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("served", [UVICORN], indirect=True, ids=["uvicorn"]),
]

MESSAGES: Any = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
QUICKLY_MS = 20  # every client here honours `retry-after-ms`

# What the dispatcher says: the HTTP status, our code and type in OpenAI's words, Anthropic's status and type.
TEMPORARY = pytest.mark.parametrize(
    ("said", "status", "code", "kind", "anthropic_status", "anthropic_kind"),
    [
        ("queue_full", 429, "queue_full", "requests", 429, "rate_limit_error"),
        ("no_replica", 503, "overloaded", "server_error", 529, "overloaded_error"),
    ],
)


@TEMPORARY
@pytest.mark.parametrize("stream", [False, True])
async def test_openai_python_tries_three_times(
    front: Front,
    stream: bool,
    said: str,
    status: int,
    code: str,
    kind: str,
    anthropic_status: int,
    anthropic_kind: str,
) -> None:
    async with openai.AsyncOpenAI(base_url=front.base_url, api_key=front.key) as client:
        with front.refusing(said, retry_after_ms=QUICKLY_MS), pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(**CHAT, stream=stream)
    error = raised.value
    assert (error.status_code, error.code, error.type) == (status, code, kind)
    assert error.request_id == front.submits[-1].request_id
    assert len(front.submits) == 3
    assert error.response.headers["retry-after"] == "1"
    assert error.response.headers["retry-after-ms"] == str(QUICKLY_MS)


@TEMPORARY
async def test_openai_javascript_tries_three_times(
    front: Front,
    node: NodeClients,
    said: str,
    status: int,
    code: str,
    kind: str,
    anthropic_status: int,
    anthropic_kind: str,
) -> None:
    access = {"baseURL": front.base_url, "apiKey": front.key, "maxRetries": 2}
    with front.refusing(said, retry_after_ms=QUICKLY_MS), pytest.raises(ClientError) as raised:
        await node.call("openai", "chatStream", **access, body=CHAT)
    details = raised.value.details
    assert (details["status"], details["code"], details["type"]) == (status, code, kind)
    assert details["request_id"] == front.submits[-1].request_id
    assert raised.value.attempts == len(front.submits) == 3


@pytest.mark.parametrize("said", ["queue_full", "no_replica"])
async def test_ai_tries_three_times(front: Front, node: NodeClients, said: str) -> None:
    access = {"baseURL": front.base_url, "apiKey": front.key, "maxRetries": 2, "model": MODEL}
    with front.refusing(said, retry_after_ms=QUICKLY_MS), pytest.raises(ClientError) as raised:
        await node.call("ai", "generate", **access, ask={"prompt": "hello"})
    assert raised.value.details["name"] == "AI_RetryError"
    assert raised.value.attempts == len(front.submits) == 3


@TEMPORARY
async def test_anthropic_tries_three_times(
    front: Front,
    said: str,
    status: int,
    code: str,
    kind: str,
    anthropic_status: int,
    anthropic_kind: str,
) -> None:
    async with anthropic.AsyncAnthropic(base_url=front.url, api_key=front.key) as client:
        with (
            front.refusing(said, retry_after_ms=QUICKLY_MS),
            pytest.raises(anthropic.APIStatusError) as raised,
        ):
            await client.messages.create(**CHAT, max_tokens=9)
    body: Any = raised.value.body
    assert (raised.value.status_code, body["error"]["type"]) == (anthropic_status, anthropic_kind)
    assert body["error"]["details"]["error_code"] == code
    assert len(front.submits) == 3


async def test_a_passed_deadline_is_not_tried_again(front: Front, node: NodeClients) -> None:
    """The same request would pass it again, and be billed again."""

    async def python() -> tuple[int, Any]:
        async with openai.AsyncOpenAI(base_url=front.base_url, api_key=front.key, max_retries=1) as client:
            with pytest.raises(openai.APIStatusError) as raised:
                await client.chat.completions.create(**CHAT)
        return raised.value.status_code, raised.value.code

    async def javascript() -> tuple[int, Any]:
        access = {"baseURL": front.base_url, "apiKey": front.key, "maxRetries": 1}
        with pytest.raises(ClientError) as raised:
            await node.call("openai", "chat", **access, body=CHAT)
        assert raised.value.attempts == 1
        return raised.value.details["status"], raised.value.details["code"]

    async def anthropics() -> tuple[int, Any]:
        async with anthropic.AsyncAnthropic(base_url=front.url, api_key=front.key, max_retries=1) as client:
            with pytest.raises(anthropic.APIStatusError) as raised:
                await client.messages.create(**CHAT, max_tokens=9)
        body: Any = raised.value.body
        assert body["error"]["type"] == "timeout_error"
        return raised.value.status_code, body["error"]["details"]["error_code"]

    with front.refusing("deadline_exceeded"):
        answers = list(await asyncio.gather(python(), javascript(), anthropics()))
    assert answers == [(504, "deadline_exceeded")] * 3
    assert len(front.submits) == 3


@pytest.mark.parametrize(
    ("key", "change", "status", "code", "param"),
    [
        ("unknown", {}, 401, "invalid_api_key", None),
        ("narrow", {}, 403, "model_not_allowed", "model"),
        ("full", {"model": "absent"}, 404, "model_not_found", "model"),
        ("full", {"temperature": 3}, 400, "invalid_value", "temperature"),
        ("full", {"temperature": "warm"}, 400, "invalid_type", "temperature"),
        ("full", {"messages": []}, 400, "invalid_value", "messages"),
        ("full", {"surprise": 1}, 400, "unknown_parameter", "surprise"),
        ("full", {"max_tokens": 5000}, 400, "context_length_exceeded", "max_tokens"),
        (
            "full",
            {"messages": [{"role": "user", "content": "x" * 600}]},
            400,
            "context_length_exceeded",
            "messages",
        ),
    ],
)
async def test_what_is_the_clients_fault_is_tried_once(
    front: Front,
    node: NodeClients,
    key: str,
    change: dict[str, Any],
    status: int,
    code: str,
    param: str | None,
) -> None:
    secret = front.deployment.keys[key]
    body = {**CHAT, **change}
    access = {"baseURL": front.base_url, "apiKey": secret, "maxRetries": 2}
    with pytest.raises(ClientError) as thrown:
        await node.call("openai", "chat", **access, body=body)
    details = thrown.value.details
    assert (details["status"], details["code"], details["param"]) == (status, code, param)
    assert thrown.value.attempts == 1

    before = await front.metric("responses_total")
    async with openai.AsyncOpenAI(base_url=front.base_url, api_key=secret) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.post("/chat/completions", body=body, cast_to=object)
    error = raised.value
    assert (error.status_code, error.code, error.param) == (status, code, param)
    assert await front.metric("responses_total") == before + 1
    assert front.submits == []


@pytest.mark.parametrize(("key", "status"), [("unknown", 401), ("narrow", 403)])
async def test_ai_does_not_repeat_what_is_its_own_fault(
    front: Front, node: NodeClients, key: str, status: int
) -> None:
    access = {"baseURL": front.base_url, "apiKey": front.deployment.keys[key], "maxRetries": 2}
    with pytest.raises(ClientError) as thrown:
        await node.call("ai", "generate", **access, model=MODEL, ask={"prompt": "hello"})
    assert (thrown.value.details["name"], thrown.value.details["statusCode"]) == ("AI_APICallError", status)
    assert thrown.value.attempts == 1


async def test_what_is_not_there_yet_is_said(front: Front) -> None:
    async with openai.AsyncOpenAI(base_url=front.base_url, api_key=front.key, max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            await client.moderations.create(input="hello")
        assert (raised.value.status_code, raised.value.code) == (501, "not_implemented")
        tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**CHAT, tools=tools)
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tools")
