"""The whole path as a customer takes it: the official client, the real model, the ledger."""

import asyncio
import json
import time
from typing import Any

import openai
import pytest

from tests.e2e.observe import eventually, fleet, is_idle, usage_row

pytestmark = pytest.mark.e2e

QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture
def client(stack: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=stack.demo["base_url"], api_key=stack.demo["api_key"], max_retries=0)


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_the_client_lists_the_model(client: openai.OpenAI, model: str) -> None:
    listed = client.models.retrieve(model)
    assert listed.object == "model"
    assert listed.max_model_len >= 1_024  # type: ignore[attr-defined]


async def test_a_chat_answer_is_sensible_and_billed_as_shown(
    stack: Any, client: openai.OpenAI, model: str
) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=48)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer._request_id is not None
    row = await usage_row(stack.operator_url, answer._request_id)
    assert answer.usage is not None
    assert (row["prompt_tokens"], row["output_tokens"]) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )
    assert row["outcome"] == "completed"
    assert row["cost_micro_usd"] == row["charged"] > 0
    assert row["ledger_sum"] == 0


async def test_a_stream_says_the_same_as_the_answer(stack: Any, client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=48)
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=QUESTION,
            temperature=0,
            max_tokens=48,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    row = await usage_row(stack.operator_url, chunks[0].id.removeprefix("chatcmpl-"))
    assert row["output_tokens"] == whole.usage.completion_tokens  # type: ignore[union-attr]


async def test_32_streams_run_as_one_batch_and_each_gets_its_own_text(stack: Any, model: str) -> None:
    client = openai.AsyncOpenAI(base_url=stack.demo["base_url"], api_key=stack.demo["api_key"], max_retries=0)
    batch_rows: list[int] = []

    async def watch() -> None:
        while True:
            state = await asyncio.to_thread(fleet, stack.redis_url)
            batch_rows.extend(w["batch_rows"] for w in state.get("workers", []))
            await asyncio.sleep(0.1)

    async def tagged(number: int) -> tuple[str, str]:
        tag = f"{1000 + number * 37}"
        prompt = f"The code is {tag}. " * 12 + "The code is"
        stream = await client.completions.create(
            model=model, prompt=prompt, max_tokens=48, temperature=0, stream=True
        )
        return tag, "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

    watcher = asyncio.create_task(watch())
    results = await asyncio.gather(*(tagged(number) for number in range(32)))
    watcher.cancel()
    await client.close()
    tags = {tag for tag, _ in results}
    for tag, text in results:
        assert tag in text
        assert not [other for other in tags - {tag} if other in text], f"cross-talk in {tag}: {text!r}"
    assert max(batch_rows) > 16
    await eventually(lambda: is_idle(stack.redis_url), what="an idle fleet")


async def test_seeded_sampling_repeats(client: openai.OpenAI, model: str) -> None:
    def sample(seed: int) -> str:
        answer = client.completions.create(
            model=model, prompt="Once upon a time", max_tokens=24, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(4)}) > 1


async def test_an_answer_follows_its_schema(client: openai.OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name a city, and say whether it is large."}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        max_tokens=100,
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content or "")
    assert found.keys() == {"city", "large"}
    assert isinstance(found["large"], bool)


async def test_a_prompt_that_came_before_is_found_and_said_to_be_cached(
    client: openai.OpenAI, model: str
) -> None:
    def cached(prompt: str) -> int:
        usage = client.completions.create(model=model, prompt=prompt, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    prompt = f"In the year {time.time_ns()} there was a lighthouse. " + "The wind turned north. " * 20
    assert cached(prompt) == 0
    assert cached(prompt) >= 64
