"""Text arrives whole in every client, however it was cut on its way."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.clients import Clients, clients_open
from tests.conformance.fronts import Front
from tests.conformance.hard_texts import HARD, texts
from tests.conformance.node import NodeClients
from tests.conformance.servers import UVICORN
from tests.gateway.harness import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="package")

MESSAGES: Any = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}


@st.composite
def cut(draw: st.DrawFn) -> list[str]:
    """Pieces of a text, cut between any two code points; some hold nothing."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


async def chunked(clients: Clients) -> list[str]:
    """As the streams of OpenAI's three endpoints, and huggingface_hub's, say it."""
    client = clients.openai
    chat = await client.chat.completions.create(**CHAT, stream=True)
    chatted = "".join([chunk.choices[0].delta.content or "" async for chunk in chat])
    completion = await client.completions.create(model=MODEL, prompt="hello", stream=True)
    completed = "".join([chunk.choices[0].text async for chunk in completion])
    events: Any = await client.responses.create(model=MODEL, input="hello", stream=True)
    responded = "".join([event.delta async for event in events if event.type == "response.output_text.delta"])
    again = await clients.chatting.chat_completion(MESSAGES, model=MODEL, stream=True)
    heard = "".join([chunk.choices[0].delta.content or "" async for chunk in again])
    return [chatted, completed, responded, heard]


async def whole(clients: Clients) -> list[str]:
    client = clients.openai
    chat = await client.chat.completions.create(**CHAT)
    completion = await client.completions.create(model=MODEL, prompt="hello")
    response = await client.responses.create(model=MODEL, input="hello")
    return [chat.choices[0].message.content or "", completion.choices[0].text, response.output_text]


async def messages(clients: Clients) -> list[str]:
    async with clients.anthropic.messages.stream(**CHAT, max_tokens=99) as stream:
        streamed = "".join([piece async for piece in stream.text_stream])
    message = await clients.anthropic.messages.create(**CHAT, max_tokens=99)
    return [streamed, message.content[0].model_dump()["text"]]


async def javascript(clients: Clients) -> list[str]:
    events, generated = await asyncio.gather(
        clients.node.call("openai", "chatStream", **clients.access, body=CHAT),
        clients.node.call("ai", "stream", **clients.access, model=MODEL, ask={"prompt": "hello"}),
    )
    chatted = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    return [chatted, generated["text"]]


async def lines(clients: Clients) -> list[str]:
    """A reader of its own making: `str.splitlines` takes more for a line end than the format does."""
    headers = {"authorization": f"Bearer {clients.access['apiKey']}"}
    body, text = {**CHAT, "stream": True}, ""
    async with (
        httpx.AsyncClient(base_url=clients.access["baseURL"], headers=headers) as client,
        client.stream("POST", "/chat/completions", json=body) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return [text]


async def texts_heard(clients: Clients) -> list[str]:
    asked = (chunked(clients), whole(clients), messages(clients), javascript(clients), lines(clients))
    return [text for texts in await asyncio.gather(*asked) for text in texts]


@pytest_asyncio.fixture(loop_scope="package")
async def clients(front: Front, node: NodeClients) -> AsyncIterator[Clients]:
    async with clients_open(front.url, front.key, node) as opened:
        yield opened


@pytest.mark.parametrize("served", [UVICORN], indirect=True, ids=["uvicorn"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=cut())
async def test_whatever_the_chunking(front: Front, clients: Clients, pieces: list[str]) -> None:
    with front.saying(*pieces):
        heard = await texts_heard(clients)
    assert heard == ["".join(pieces)] * len(heard)


@pytest.mark.parametrize("served", [UVICORN], indirect=True, ids=["uvicorn"])
@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
async def test_one_code_point_at_a_time(front: Front, clients: Clients, text: str) -> None:
    with front.saying(*text):
        heard = await texts_heard(clients)
    assert heard == [text] * len(heard)
