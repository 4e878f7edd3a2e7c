"""What the OpenAI client can ask for beyond text: choices, log probabilities, shapes, responses, keys."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import openai
import pytest
from openai import OpenAI

from tests.conformance.stack import Stack, said
from tests.e2e.observe import usage_row, usage_rows
from tests.gateway.harness import MODEL

CONTENT = "Grüße 你好 👩‍👩‍👧"
MESSAGES: Any = [{"role": "user", "content": CONTENT}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=stack.base_url,
        api_key=stack.key,
        _strict_response_validation=True,
        max_retries=0,
        timeout=20,
    ) as opened:
        yield opened


@pytest.fixture
def lenient(stack: Stack) -> Iterator[OpenAI]:
    """Where OpenAI sends a null that its client's types do not allow: a chunk's `finish_reason`, the log
    probability of a prompt's first token."""
    with OpenAI(base_url=stack.base_url, api_key=stack.key, max_retries=0, timeout=20) as opened:
        yield opened


def test_several_choices(client: OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, n=3)
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [
        (index, said(CONTENT)) for index in range(3)
    ]
    assert whole.usage is not None
    texts, reasons = ["", "", ""], [""] * 3
    for chunk in client.chat.completions.create(**CHAT, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] += choice.finish_reason or ""
    assert texts == [said(CONTENT)] * 3
    assert reasons == ["stop"] * 3


def test_several_prompts(client: OpenAI, lenient: OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": ["ab", "cd"], "n": 2, "max_tokens": 4}
    expected = ["abab", "abab", "cdcd", "cdcd"]
    whole = client.completions.create(**asked)
    assert [choice.text for choice in whole.choices] == expected
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 16)
    texts = [""] * 4
    for chunk in lenient.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


def test_log_probabilities(client: OpenAI, lenient: OpenAI) -> None:
    chat = client.chat.completions.create(**CHAT, max_tokens=5, logprobs=True, top_logprobs=1)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["<|im_start|>", "u", "s", "e", "r"]
    assert [entry.top_logprobs[0].token for entry in logprobs.content][1:] == ["u", "s", "e", "r"]
    stream = client.chat.completions.create(**CHAT, max_tokens=5, logprobs=True, stream=True)
    streamed = [
        entry.token
        for chunk in stream
        for choice in chunk.choices
        for entry in (choice.logprobs.content if choice.logprobs else None) or []
    ]
    assert streamed == ["<|im_start|>", "u", "s", "e", "r"]
    asked: Any = {"model": MODEL, "prompt": "abc", "max_tokens": 3, "logprobs": 1}
    completion = lenient.completions.create(**asked, echo=True)
    assert completion.choices[0].text == "abcabc"
    listed = completion.choices[0].logprobs
    assert listed is not None
    assert listed.tokens == ["a", "b", "c", "a", "b", "c"]
    assert listed.token_logprobs is not None
    assert listed.token_logprobs[0] is None  # nothing comes before a prompt's first token
    assert listed.text_offset == [0, 1, 2, 3, 4, 5]
    chunks = list(
        lenient.completions.create(model=MODEL, prompt="abc", max_tokens=3, logprobs=1, stream=True)
    )
    tokens = [token for c in chunks if (found := c.choices[0].logprobs) for token in found.tokens or []]
    assert tokens == ["a", "b", "c"]


def test_shapes(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(**CHAT, response_format=shape, max_tokens=200)
    assert isinstance(json.loads(answer.choices[0].message.content or "")["ok"], bool)
    chosen = client.completions.create(
        model=MODEL, prompt="yes or no", extra_body={"guided_choice": ["red", "green"]}
    )
    assert chosen.choices[0].text in ("red", "green")


def test_vllms_parameters(client: OpenAI) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 3,
        "ignore_eos": True,
        "stop_token_ids": [7],
        "prompt_logprobs": 0,
        "priority": 0,
    }
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=4, extra_body=extra)
    assert answer.choices[0].text == "abca"


def test_service_tiers(client: OpenAI) -> None:
    tiers: list[Any] = ["flex", "default", "priority"]
    answers = [client.chat.completions.create(**CHAT, service_tier=tier) for tier in tiers]
    assert [answer.service_tier for answer in answers] == ["flex", "default", "default"]


def test_responses(client: OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input=CONTENT, store=False)
    assert (whole.object, whole.status, whole.output_text) == ("response", "completed", said(CONTENT))
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": CONTENT}]}]
    listed = client.responses.create(model=MODEL, input=asked, store=False)
    assert listed.output_text == said(CONTENT)


def test_the_events_of_a_response(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=CONTENT, store=False) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    opening = ["created", "in_progress", "output_item.added", "content_part.added"]
    closing = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds[:4] == [f"response.{name}" for name in opening]
    assert kinds[-4:] == [f"response.{name}" for name in closing]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == said(CONTENT)


async def test_usage_is_what_the_ledger_has(stack: Stack, client: OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer._request_id is not None
    row = await usage_row(stack.operator_url, answer._request_id)
    assert answer.usage is not None
    assert (row["prompt_tokens"], row["output_tokens"]) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )
    assert row["cost_micro_usd"] == row["charged"]
    assert row["ledger_sum"] == 0
    asked: Any = client.get(f"/usage/{answer._request_id}", cast_to=object)
    assert (asked["status"], asked["completion_tokens"]) == ("recorded", answer.usage.completion_tokens)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_gives_the_same_answer_again(stack: Stack, client: OpenAI, stream: bool) -> None:
    headers = {"Idempotency-Key": str(uuid4())}
    create = client.chat.completions.with_raw_response.create
    first, second = (create(**CHAT, extra_headers=headers, stream=stream) for _ in range(2))
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert first.headers["x-request-id"] == second.headers["x-request-id"]
    if stream:
        streams: list[Any] = [first.parse(), second.parse()]
        told = [[chunk.model_dump() for chunk in chunks] for chunks in streams]
        assert told[0] == told[1]
    else:
        assert first.content == second.content
    await usage_row(stack.operator_url, first.headers["x-request-id"])
    assert len(usage_rows(stack.operator_url, first.headers["x-request-id"])) == 1
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(**CHAT, max_tokens=3, extra_headers=headers)
    assert refused.value.code == "idempotency_key_reused"
