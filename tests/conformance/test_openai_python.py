"""The official Python client, sync and async, as strict as it can be, under every server."""

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.conformance.fronts import SPOKEN, Front
from tests.gateway.harness import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT: Any = [{"role": "user", "content": "hello"}]
TEXT = "".join(SPOKEN)


def strict(front: Front, key: str = "full", **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=front.base_url,
        api_key=front.deployment.keys[key],
        _strict_response_validation=True,
        max_retries=0,
        timeout=20,
        **options,
    )


async def test_models(front: Front) -> None:
    async with strict(front) as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve(MODEL)
    assert sorted(listed) == ["other", MODEL]
    assert (one.id, one.object, one.owned_by) == (MODEL, "model", "sluice")
    assert one.model_dump()["max_model_len"] == 512
    async with strict(front, "narrow") as client:
        assert [model.id async for model in client.models.list()] == ["other"]


async def test_chat(front: Front) -> None:
    async with strict(front) as client:
        with front.saying(*SPOKEN):
            answer = await client.chat.completions.create(model=MODEL, messages=CHAT)
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SPOKEN)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(SPOKEN)
    assert answer._request_id


async def test_chat_stream(front: Front) -> None:
    async with strict(front) as client:
        with front.saying(*SPOKEN, reason="length"):
            stream = await client.chat.completions.create(
                model=MODEL, messages=CHAT, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
    first, *_, finish, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "length"]
    assert finish.choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(SPOKEN)
    assert {(c.id, c.created, c.model, c.object) for c in chunks} == {
        (first.id, first.created, MODEL, "chat.completion.chunk")
    }


async def test_completions(front: Front) -> None:
    async with strict(front) as client:
        with front.saying(*SPOKEN):
            whole = await client.completions.create(model=MODEL, prompt="hello")
    # Not strict: the client's own type has no null for a chunk's finish_reason, which OpenAI does send.
    async with AsyncOpenAI(base_url=front.base_url, api_key=front.key, max_retries=0) as client:
        with front.saying(*SPOKEN):
            stream = await client.completions.create(model=MODEL, prompt="hello", stream=True)
            chunks = [chunk async for chunk in stream]
    assert (whole.object, whole.choices[0].text, whole.choices[0].finish_reason) == (
        "text_completion",
        TEXT,
        "stop",
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]


async def test_the_synchronous_client(front: Front) -> None:
    def talk() -> tuple[list[str], str | None, str]:
        with OpenAI(
            base_url=front.base_url, api_key=front.key, _strict_response_validation=True, max_retries=0
        ) as client:
            models = [model.id for model in client.models.list()]
            whole = client.chat.completions.create(model=MODEL, messages=CHAT)
            stream = client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return models, whole.choices[0].message.content, streamed

    with front.saying(*SPOKEN):
        models, whole, streamed = await asyncio.to_thread(talk)
    assert sorted(models) == ["other", MODEL]
    assert whole == streamed == TEXT


async def test_each_event_arrives_when_its_token_does(front: Front) -> None:
    async with strict(front) as client:
        asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=CHAT, stream=True))
        submit = await front.dispatcher.submitted()
        front.dispatcher.place(submit, front.worker)
        front.worker.emit(submit.sid, 0, 1, SPOKEN[0])
        stream = await asyncio.wait_for(asking, 5)
        events = aiter(stream)
        assert (await anext(events)).choices[0].delta.role == "assistant"
        assert (await asyncio.wait_for(anext(events), 5)).choices[0].delta.content == SPOKEN[0]
        for start, piece in enumerate(SPOKEN[1:], 1):  # none is sent before the last one was read
            front.worker.emit(submit.sid, start, 1, piece)
            assert (await asyncio.wait_for(anext(events), 5)).choices[0].delta.content == piece
        front.worker.finish(submit.sid, "stop", output=len(SPOKEN))
        assert [event.choices[0].finish_reason async for event in events] == ["stop"]


async def test_many_streams_at_once(front: Front) -> None:
    async def one(client: AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with strict(front) as client:
        with front.saying(*SPOKEN):
            texts = await asyncio.gather(*(one(client) for _ in range(32)))
    assert texts == [TEXT] * 32


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("key", "model", "error", "code"),
    [
        ("unknown", MODEL, openai.AuthenticationError, "invalid_api_key"),
        ("narrow", MODEL, openai.PermissionDeniedError, "model_not_allowed"),
        ("full", "absent", openai.NotFoundError, "model_not_found"),
    ],
)
async def test_refusals_are_statuses(
    front: Front, key: str, model: str, error: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    async with strict(front, key) as client:
        with pytest.raises(error) as refused:
            await client.chat.completions.create(model=model, messages=CHAT, stream=stream)
    assert refused.value.code == code
    assert refused.value.request_id


async def test_a_body_that_is_too_large(front: Front) -> None:
    async with strict(front) as client:
        with pytest.raises(openai.APIError) as refused:
            await client.completions.create(model=MODEL, prompt="x" * (5 << 20))
    if front.server.lingers:
        assert isinstance(refused.value, openai.APIStatusError)
        assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")


async def test_an_error_after_the_first_event_is_raised_with_its_code(front: Front) -> None:
    async with strict(front) as client:
        with front.saying("some", " text", reason="error"):
            stream = await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
            read = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
            with pytest.raises(openai.APIError) as failed:
                await anext(stream)
    assert read == ["", "some", " text"]
    assert (failed.value.code, failed.value.type) == ("engine_error", "server_error")
