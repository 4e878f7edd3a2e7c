"""A client that stops reading halfway: the worker hears of it. What other files do not show."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from text_generation import AsyncClient

from tests.conformance.fronts import Front
from tests.conformance.servers import UVICORN
from tests.gateway.harness import MODEL

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("served", [UVICORN], indirect=True, ids=["uvicorn"]),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]


async def huggingface_chat(front: Front) -> AsyncGenerator[str, None]:
    async with AsyncInferenceClient(base_url=front.base_url, api_key=front.key) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        async for chunk in await client.chat_completion(messages, model=MODEL, stream=True):
            yield chunk.choices[0].delta.content or ""


async def huggingface_generation(front: Front) -> AsyncGenerator[str, None]:
    async with AsyncInferenceClient(model=front.url, token=front.key) as client:
        async for piece in await client.text_generation("hello", max_new_tokens=9, stream=True):
            yield piece


async def text_generation(front: Front) -> AsyncGenerator[str, None]:
    client = AsyncClient(front.url, headers={"authorization": f"Bearer {front.key}"})
    stream: Any = client.generate_stream("hello", max_new_tokens=9)
    try:
        async for event in stream:
            yield event.token.text
    finally:
        await stream.aclose()


async def langchain(front: Front) -> AsyncGenerator[str, None]:
    model = ChatOpenAI(base_url=front.base_url, api_key=SecretStr(front.key), model=MODEL, max_retries=0)
    stream: Any = model.astream([HumanMessage("hello")])
    try:
        async for chunk in stream:
            yield chunk.text
    finally:
        await stream.aclose()


@pytest.mark.parametrize("pieces", [huggingface_chat, huggingface_generation, text_generation, langchain])
async def test_the_worker_hears_of_it(
    front: Front, pieces: Callable[[Front], AsyncGenerator[str, None]]
) -> None:
    async def first_piece() -> str:
        async for piece in reading:
            if piece:
                return piece
        return ""

    reading = pieces(front)
    asking = asyncio.create_task(first_piece())
    submit = await front.dispatcher.submitted()
    front.dispatcher.place(submit, front.worker)
    front.worker.emit(submit.sid, 0, 1, "one")
    assert await asyncio.wait_for(asking, 10) == "one"
    await reading.aclose()
    cancel = await asyncio.wait_for(front.worker.cancels.get(), 5)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
