"""The JavaScript clients, unmodified: `openai`, and `ai` with `@ai-sdk/openai-compatible`."""

import asyncio
from typing import Any

import pytest

from tests.conformance.fronts import SPOKEN, Front
from tests.conformance.node import ClientError, NodeClients
from tests.conformance.servers import UVICORN
from tests.gateway.harness import MODEL

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("served", [UVICORN], indirect=True, ids=["uvicorn"]),
]

CHAT: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
ASK: Any = {"prompt": "hello"}
TEXT = "".join(SPOKEN)


def access(front: Front, key: str = "full", **options: Any) -> dict[str, Any]:
    return {"baseURL": front.base_url, "apiKey": front.deployment.keys[key], **options}


async def test_openai_lists_models(front: Front, node: NodeClients) -> None:
    assert sorted(await node.call("openai", "models", **access(front))) == ["other", MODEL]


async def test_openai_chat(front: Front, node: NodeClients) -> None:
    with front.saying(*SPOKEN):
        said = await node.call("openai", "chat", **access(front, body=CHAT))
    (choice,) = said["answer"]["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (TEXT, "stop")
    assert said["answer"]["usage"]["completion_tokens"] == len(SPOKEN)
    assert said["request_id"] == front.submits[0].request_id


async def test_openai_chat_stream(front: Front, node: NodeClients) -> None:
    body = {**CHAT, "stream_options": {"include_usage": True}}
    with front.saying(*SPOKEN, reason="length"):
        events = await node.call("openai", "chatStream", **access(front, body=body))
    *spoken, usage = events
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in spoken) == TEXT
    assert spoken[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(SPOKEN)


async def test_openai_completions(front: Front, node: NodeClients) -> None:
    body = {"model": MODEL, "prompt": "hello"}
    with front.saying(*SPOKEN):
        whole = await node.call("openai", "completion", **access(front, body=body))
        events = await node.call("openai", "completionStream", **access(front, body=body))
    assert whole["choices"][0]["text"] == TEXT
    assert "".join(event["choices"][0]["text"] for event in events) == TEXT


async def test_openai_responses(front: Front, node: NodeClients) -> None:
    body = {"model": MODEL, "input": "hello", "store": False}
    with front.saying(*SPOKEN):
        whole = await node.call("openai", "response", **access(front, body=body))
        events = await node.call("openai", "responseStream", **access(front, body=body))
    assert (whole["output_text"], whole["answer"]["status"]) == (TEXT, "completed")
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == TEXT
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["usage"]["output_tokens"] == len(SPOKEN)


async def test_openai_aborts(front: Front, node: NodeClients) -> None:
    calling = asyncio.create_task(node.call("openai", "chatAbort", **access(front, body=CHAT)))
    submit = await front.dispatcher.submitted()
    front.dispatcher.place(submit, front.worker)
    front.worker.emit(submit.sid, 0, 1, "one")
    cancel = await asyncio.wait_for(front.worker.cancels.get(), 5)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    assert await calling == "one"


async def test_openai_error_in_a_stream(front: Front, node: NodeClients) -> None:
    with front.saying("some", reason="error"), pytest.raises(ClientError) as failed:
        await node.call("openai", "chatStream", **access(front, body=CHAT, maxRetries=2))
    assert (failed.value.details["code"], failed.value.details["type"]) == ("engine_error", "server_error")
    assert failed.value.attempts == 1  # what was begun is never repeated


async def test_ai_generates(front: Front, node: NodeClients) -> None:
    with front.saying(*SPOKEN):
        said = await node.call("ai", "generate", **access(front, model=MODEL, ask=ASK))
    assert (said["text"], said["finishReason"]) == (TEXT, "stop")
    assert said["usage"]["outputTokens"] == len(SPOKEN)


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_ai_streams(front: Front, node: NodeClients, reason: str) -> None:
    with front.saying(*SPOKEN, reason=reason):
        said = await node.call("ai", "stream", **access(front, model=MODEL, ask=ASK))
    assert (said["text"], said["finishReason"], said["errors"]) == (TEXT, reason, [])
    assert said["usage"]["outputTokens"] == len(SPOKEN)


async def test_ai_aborts(front: Front, node: NodeClients) -> None:
    calling = asyncio.create_task(node.call("ai", "abort", **access(front, model=MODEL, ask=ASK)))
    submit = await front.dispatcher.submitted()
    front.dispatcher.place(submit, front.worker)
    front.worker.emit(submit.sid, 0, 1, "one")
    cancel = await asyncio.wait_for(front.worker.cancels.get(), 5)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    assert await calling == "one"


async def test_ai_error_in_a_stream(front: Front, node: NodeClients) -> None:
    with front.saying("some", reason="error"):
        said = await node.call("ai", "stream", **access(front, model=MODEL, ask=ASK))
    assert (said["text"], said["finishReason"]) == ("some", "error")
    assert said["errors"]
