"""What a stop string cuts off is never seen, in any dialect, wherever the model's tokens cut it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.conformance.clients import Clients, clients_open
from tests.conformance.hard_texts import characters, texts
from tests.conformance.node import NodeClients
from tests.conformance.stack import Stack, said
from tests.gateway.harness import MODEL
from tests.gateway.weights import tokenizer_make

pytestmark = pytest.mark.asyncio(loop_scope="package")

TOKENIZER = tokenizer_make()  # a token is a byte, so that every character beyond ASCII is cut


async def completion(clients: Clients, prompt: str, stops: list[str], tokens: int) -> str:
    asked: dict[str, Any] = {"model": MODEL, "prompt": prompt, "stop": stops, "max_tokens": tokens}
    whole = await clients.openai.completions.create(**asked)
    stream = await clients.openai.completions.create(**asked, stream=True)
    streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert streamed == whole.choices[0].text
    return streamed


async def generation(clients: Clients, prompt: str, stops: list[str], tokens: int) -> str:
    asked: dict[str, Any] = {"max_new_tokens": tokens, "stop": stops, "details": True}
    whole: Any = await clients.generating.text_generation(prompt, **asked)
    stream: Any = await clients.generating.text_generation(prompt, **asked, stream=True)
    events = [event async for event in stream]
    streamed = "".join(event.token.text for event in events if not event.token.special)
    assert streamed == events[-1].generated_text == whole.generated_text
    assert "".join(token.text for token in whole.details.tokens if not token.special) == streamed
    return streamed


async def chat(clients: Clients, content: str, stops: list[str]) -> str:
    messages: Any = [{"role": "user", "content": content}]
    stream = await clients.openai.chat.completions.create(
        model=MODEL, messages=messages, stop=stops, stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def message(clients: Clients, content: str, stops: list[str]) -> str:
    messages: Any = [{"role": "user", "content": content}]
    async with clients.anthropic.messages.stream(
        model=MODEL, messages=messages, stop_sequences=stops, max_tokens=200
    ) as stream:
        return "".join([piece async for piece in stream.text_stream])


@pytest_asyncio.fixture(loop_scope="package")
async def clients(stack: Stack, node: NodeClients) -> AsyncIterator[Clients]:
    async with clients_open(stack.url, stack.key, node) as opened:
        yield opened


@st.composite
def stopped(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A prompt, and stop strings that mostly occur when it is repeated."""
    prompt = draw(texts.filter(bool))
    twice = prompt * 2
    begins = draw(st.lists(st.integers(0, len(twice) - 1), min_size=1, max_size=3))
    stops = [twice[begin : begin + draw(st.integers(1, 5))] for begin in begins]
    return prompt, [*stops, *draw(st.lists(st.text(characters, min_size=1, max_size=3), max_size=1))]


def before_stop(text: str, stops: list[str]) -> str:
    """Up to the stop string that is complete first; of several that end together the longest counts."""
    for end in range(1, len(text) + 1):
        if ended := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, ended))]
    return text


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=stopped())
@example(case=("a👩‍👩‍👧b", ["👧"]))
@example(case=("abab ac", ["ac", "abac", "b a"]))
async def test_nothing_of_it_is_seen(clients: Clients, case: tuple[str, list[str]]) -> None:
    prompt, stops = case
    tokens = 3 * len(TOKENIZER.encode(prompt).ids)
    repeated, chatted = before_stop(prompt * 3, stops), before_stop(said(prompt), stops)
    heard = await asyncio.gather(
        completion(clients, prompt, stops, tokens),
        generation(clients, prompt, stops, tokens),
        chat(clients, prompt, stops),
        message(clients, prompt, stops),
    )
    assert list(heard) == [repeated, repeated, chatted, chatted]
