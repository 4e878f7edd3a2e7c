"""Anthropic's Python client, sync and async, under every server."""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.conformance.fronts import SPOKEN, Front
from tests.gateway.harness import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="package")

ASK: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hello"}],
}
TEXT = "".join(SPOKEN)


def strict(front: Front, key: str = "full") -> AsyncAnthropic:
    return AsyncAnthropic(
        base_url=front.url,
        api_key=front.deployment.keys[key],
        _strict_response_validation=True,
        max_retries=0,
        timeout=20,
    )


async def test_models(front: Front) -> None:
    async with AsyncAnthropic(base_url=front.url, api_key=front.key, max_retries=0) as client:
        assert sorted([model.id async for model in client.models.list()]) == ["other", MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL


@pytest.mark.parametrize(("reason", "stop_reason"), [("stop", "end_turn"), ("length", "max_tokens")])
async def test_messages(front: Front, reason: str, stop_reason: str) -> None:
    async with strict(front) as client:
        with front.saying(*SPOKEN, reason=reason):
            message = await client.messages.create(**ASK)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert [block.model_dump()["text"] for block in message.content] == [TEXT]
    assert (message.stop_reason, message.stop_sequence) == (stop_reason, None)
    assert message.usage.output_tokens == len(SPOKEN)
    assert message.usage.input_tokens > 0
    assert message._request_id == front.submits[0].request_id


async def test_the_events_of_a_stream(front: Front) -> None:
    async with strict(front) as client:
        with front.saying(*SPOKEN):
            stream = await client.messages.create(**ASK, stream=True)
            events: list[Any] = [event async for event in stream]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert events[0].message.usage.input_tokens > 0
    assert "".join(event.delta.text for event in events[2:-3]) == TEXT
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("end_turn", len(SPOKEN))


async def test_the_stream_helper(front: Front) -> None:
    async with strict(front) as client:
        with front.saying(*SPOKEN):
            async with client.messages.stream(**ASK) as stream:
                pieces = [piece async for piece in stream.text_stream]
                message = await stream.get_final_message()
    assert "".join(pieces) == TEXT
    assert message.content[0].model_dump()["text"] == TEXT
    assert message.stop_reason == "end_turn"


async def test_the_synchronous_client(front: Front) -> None:
    def talk() -> tuple[str, str]:
        with Anthropic(base_url=front.url, api_key=front.key, max_retries=0) as client:
            whole = client.messages.create(**ASK).content[0].model_dump()["text"]
            with client.messages.stream(**ASK) as stream:
                return whole, "".join(stream.text_stream)

    with front.saying(*SPOKEN):
        assert await asyncio.to_thread(talk) == (TEXT, TEXT)


async def test_count_tokens(front: Front) -> None:
    async with strict(front) as client:
        counted = await client.messages.count_tokens(model=MODEL, messages=ASK["messages"])
        with front.saying(*SPOKEN):
            message = await client.messages.create(**ASK)
    assert counted.input_tokens == message.usage.input_tokens


@pytest.mark.parametrize(
    ("key", "model", "error", "kind"),
    [
        ("unknown", MODEL, anthropic.AuthenticationError, "authentication_error"),
        ("narrow", MODEL, anthropic.PermissionDeniedError, "permission_error"),
        ("full", "absent", anthropic.NotFoundError, "not_found_error"),
    ],
)
async def test_refusals(
    front: Front, key: str, model: str, error: type[anthropic.APIStatusError], kind: str
) -> None:
    async with strict(front, key) as client:
        with pytest.raises(error) as refused:
            await client.messages.create(**{**ASK, "model": model})
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"]


async def test_an_error_in_a_stream(front: Front) -> None:
    async with strict(front) as client:
        with front.saying("some", reason="error"):
            stream = await client.messages.create(**ASK, stream=True)
            with pytest.raises(anthropic.APIStatusError) as failed:
                async for _ in stream:
                    pass
    body: Any = failed.value.body
    assert (body["error"]["type"], body["error"]["details"]["error_code"]) == ("api_error", "engine_error")


async def test_the_client_closes_its_stream(front: Front) -> None:
    async with strict(front) as client:
        asking = asyncio.create_task(client.messages.create(**ASK, stream=True))
        submit = await front.dispatcher.submitted()
        front.dispatcher.place(submit, front.worker)
        front.worker.emit(submit.sid, 0, 1, "one")
        stream: Any = await asking
        async for event in stream:
            if event.type == "content_block_delta":
                break
        await stream.close()
        cancel = await asyncio.wait_for(front.worker.cancels.get(), 5)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
