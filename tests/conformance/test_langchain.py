"""langchain-openai's ChatOpenAI: invoke, stream, batch, structured output, and its errors."""

from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

from tests.conformance.stack import Stack, said
from tests.gateway.harness import MODEL

CONTENT = "Grüße 你好 👩‍👩‍👧"


def chat(stack: Stack, **options: Any) -> ChatOpenAI:
    settings: dict[str, Any] = {"max_retries": 0, "timeout": 20, "stream_usage": True, **options}
    return ChatOpenAI(base_url=stack.base_url, api_key=SecretStr(stack.key), model=MODEL, **settings)


def test_invoke(stack: Stack) -> None:
    answer = chat(stack).invoke([HumanMessage(CONTENT)])
    assert answer.content == said(CONTENT)
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > len(CONTENT)


def test_several_choices_with_log_probabilities_cut_short(stack: Stack) -> None:
    model = chat(stack, n=2, logprobs=True, max_tokens=5)
    (choices,) = model.generate([[HumanMessage(CONTENT)]]).generations
    assert [choice.text for choice in choices] == ["user"] * 2
    for choice in choices:
        assert choice.generation_info is not None
        assert choice.generation_info["finish_reason"] == "length"
        told = choice.generation_info["logprobs"]["content"]
        assert [entry["token"] for entry in told] == ["<|im_start|>", "u", "s", "e", "r"]


def test_stream(stack: Stack) -> None:
    whole: AIMessageChunk | None = None
    for chunk in chat(stack).stream([HumanMessage(CONTENT)]):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content == said(CONTENT)
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None


async def test_asynchronously(stack: Stack) -> None:
    pieces = [chunk.content async for chunk in chat(stack).astream([HumanMessage(CONTENT)])]
    assert "".join(str(piece) for piece in pieces) == said(CONTENT)
    answers = await chat(stack).abatch([[HumanMessage(str(number))] for number in range(4)])
    assert [answer.content for answer in answers] == [said(str(number)) for number in range(4)]


def test_the_responses_api(stack: Stack) -> None:
    answer = chat(stack, use_responses_api=True).invoke([HumanMessage(CONTENT)])
    assert answer.text == said(CONTENT)
    streamed = chat(stack, use_responses_api=True).stream([HumanMessage(CONTENT)])
    assert "".join(chunk.text for chunk in streamed) == said(CONTENT)


def test_structured_output(stack: Stack) -> None:
    schema = {
        "title": "answer",
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    asked = chat(stack, max_tokens=200).with_structured_output(schema, method="json_schema", strict=True)
    answer = asked.invoke([SystemMessage("be brief"), HumanMessage("is it so?")])
    assert isinstance(answer, dict)
    assert isinstance(answer["ok"], bool)


def test_completions(stack: Stack) -> None:
    model = OpenAI(
        base_url=stack.base_url, api_key=SecretStr(stack.key), model=MODEL, max_tokens=7, max_retries=0
    )
    assert model.invoke("abc") == "abcabca"
    assert "".join(model.stream("abc")) == "abcabca"


def test_errors(stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(stack).invoke([HumanMessage("x" * 600)])
    assert refused.value.code == "context_length_exceeded"
