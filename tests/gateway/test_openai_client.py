"""The official client, unmodified, against a gateway process."""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.gateway.harness import MODEL, GatewayProcess

pytestmark = pytest.mark.asyncio(loop_scope="package")

TEXT = 'Hello wörld 你好 \u2028line "end"\n'
CHAT: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


async def test_lists_and_gets_models(echoing: GatewayProcess) -> None:
    async with AsyncOpenAI(base_url=echoing.base_url, api_key=echoing.key) as client:
        models = [model async for model in client.models.list()]
        one = await client.models.retrieve("org/third")
    assert [model.id for model in models] == ["org/third", "other", MODEL]
    assert one.owned_by == "sluice"
    assert one.model_dump()["max_model_len"] == 512


async def test_chat_without_stream(echoing: GatewayProcess) -> None:
    async with AsyncOpenAI(
        base_url=echoing.base_url, api_key=echoing.key, _strict_response_validation=True
    ) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=CHAT, max_completion_tokens=9)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    record = echoing.usage_of(answer._request_id or "")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        record.prompt_tokens,
        record.output_tokens,
    )
    assert record.outcome == "completed"
    assert record.output_tokens == 5


async def test_chat_stream_with_usage(echoing: GatewayProcess) -> None:
    async with AsyncOpenAI(
        base_url=echoing.base_url, api_key=echoing.key, _strict_response_validation=True
    ) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=CHAT, stream=True, stream_options={"include_usage": True}, max_tokens=2
        )
        chunks = [chunk async for chunk in stream]
    first, *middle, finish, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == "Hello wörld"
    assert finish.choices[0].finish_reason == "length"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 2
    assert {chunk.id for chunk in chunks} == {first.id}
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1])


def stream_in_thread(base_url: str, key: str) -> tuple[str, list[bool]]:
    with OpenAI(base_url=base_url, api_key=key) as client:
        stream = client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    return text, ["usage" in chunk.model_fields_set for chunk in chunks]


async def test_synchronous_client_streams_without_usage(echoing: GatewayProcess) -> None:
    text, has_usage = await asyncio.to_thread(stream_in_thread, echoing.base_url, echoing.key)
    assert text == TEXT
    assert not any(has_usage)


async def test_completions(echoing: GatewayProcess) -> None:
    async with AsyncOpenAI(
        base_url=echoing.base_url, api_key=echoing.key, _strict_response_validation=True
    ) as client:
        whole = await client.completions.create(model=MODEL, prompt="hello", max_tokens=3)
        listed = await client.completions.create(model=MODEL, prompt=["hello"], max_tokens=3)
        by_ids = await client.completions.create(model=MODEL, prompt=[10, 20, 30], max_tokens=3)
    # Not strict: the client's own type allows no null finish_reason in chunks, which OpenAI does send.
    async with AsyncOpenAI(base_url=echoing.base_url, api_key=echoing.key) as client:
        stream = await client.completions.create(model=MODEL, prompt="hello", stream=True, max_tokens=3)
        chunks = [chunk async for chunk in stream]
    assert whole.object == "text_completion"
    assert whole.choices[0].text == listed.choices[0].text == by_ids.choices[0].text == "Hello wörld 你好"
    assert [answer.usage and answer.usage.prompt_tokens for answer in (whole, by_ids)] == [3, 3]  # he, ll, o
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello wörld 你好"
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("key", "model", "error", "code"),
    [
        ("unknown", MODEL, openai.AuthenticationError, "invalid_api_key"),
        ("expired", MODEL, openai.AuthenticationError, "invalid_api_key"),
        ("scopeless", MODEL, openai.PermissionDeniedError, "insufficient_scope"),
        ("narrow", MODEL, openai.PermissionDeniedError, "model_not_allowed"),
        ("full", "absent", openai.NotFoundError, "model_not_found"),
    ],
)
async def test_error_classes(
    echoing: GatewayProcess, key: str, model: str, error: type[openai.APIStatusError], code: str
) -> None:
    async with AsyncOpenAI(base_url=echoing.base_url, api_key=echoing.keys[key]) as client:
        for stream in (False, True):
            with pytest.raises(error) as raised:
                await client.chat.completions.create(model=model, messages=CHAT, stream=stream)
            assert raised.value.code == code
            assert raised.value.request_id


async def test_prompt_over_context(echoing: GatewayProcess) -> None:
    async with AsyncOpenAI(base_url=echoing.base_url, api_key=echoing.key) as client:
        for prompt in ("x" * 600, "x" * 200_000):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.completions.create(model=MODEL, prompt=prompt)
            assert raised.value.code == "context_length_exceeded"
