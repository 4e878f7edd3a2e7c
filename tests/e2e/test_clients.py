"""Other people's clients, unmodified, against the real model: each gets the same sensible answer."""

from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from huggingface_hub import InferenceClient
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import SecretStr
from text_generation import Client

from tests.conformance.node import node_started
from tests.e2e.conftest import RunningStack

pytestmark = pytest.mark.e2e

QUESTION = "What is the capital of France? Answer in one sentence."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
TOKENS = 24


@pytest.fixture
def root_url(stack: RunningStack) -> str:
    return str(stack.demo["base_url"]).removesuffix("/v1")


@pytest.fixture
def key(stack: RunningStack) -> str:
    return str(stack.demo["api_key"])


@pytest.fixture
def asked(stack: RunningStack) -> dict[str, Any]:
    return {"model": stack.demo["model"], "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}


def test_openai_responses(root_url: str, key: str, asked: dict[str, Any]) -> None:
    with OpenAI(base_url=f"{root_url}/v1", api_key=key, max_retries=0) as client:
        wanted: dict[str, Any] = {"model": asked["model"], "input": QUESTION, "temperature": 0}
        whole = client.responses.create(**wanted, max_output_tokens=TOKENS)
        events = client.responses.create(**wanted, max_output_tokens=TOKENS, stream=True)
        streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert "Paris" in whole.output_text
    assert streamed == whole.output_text


def test_anthropic(root_url: str, key: str, asked: dict[str, Any]) -> None:
    # The client's own types have no temperature.
    wanted = {"extra_body": {"temperature": asked.pop("temperature")}, **asked}
    with Anthropic(base_url=root_url, api_key=key, max_retries=0) as client:
        message = client.messages.create(**wanted)
        with client.messages.stream(**wanted) as stream:
            streamed = "".join(stream.text_stream)
        counted = client.messages.count_tokens(model=asked["model"], messages=MESSAGES)
    text = message.content[0].model_dump()["text"]
    assert "Paris" in text
    assert streamed == text
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_huggingface(root_url: str, key: str, asked: dict[str, Any]) -> None:
    answer = InferenceClient(base_url=f"{root_url}/v1", api_key=key).chat_completion(**asked)
    assert "Paris" in (answer.choices[0].message.content or "")


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_text_generation(root_url: str, key: str) -> None:
    client = Client(root_url, headers={"authorization": f"Bearer {key}"}, timeout=60)
    whole = client.generate("The capital of France is", max_new_tokens=8)
    assert "Paris" in whole.generated_text
    events = list(client.generate_stream("The capital of France is", max_new_tokens=8))
    assert "".join(event.token.text for event in events if not event.token.special) == whole.generated_text
    assert [event.token.id for event in events] == [token.id for token in whole.details.tokens]


def test_langchain(root_url: str, key: str, asked: dict[str, Any]) -> None:
    model = ChatOpenAI(
        base_url=f"{root_url}/v1", api_key=SecretStr(key), model=asked["model"], temperature=0, max_retries=0
    )
    chunks = model.stream([HumanMessage(QUESTION)], max_tokens=TOKENS)
    assert "Paris" in "".join(chunk.text for chunk in chunks)


async def test_javascript(root_url: str, key: str, asked: dict[str, Any], tmp_path: Path) -> None:
    access: dict[str, Any] = {"baseURL": f"{root_url}/v1", "apiKey": key}
    async with node_started(tmp_path) as node:
        events = await node.call("openai", "chatStream", **access, body=asked)
        ask = {"prompt": QUESTION, "temperature": 0, "maxOutputTokens": TOKENS}
        generated = await node.call("ai", "stream", **access, model=asked["model"], ask=ask)
    chatted = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert "Paris" in chatted
    assert (generated["text"], generated["errors"]) == (chatted, [])
