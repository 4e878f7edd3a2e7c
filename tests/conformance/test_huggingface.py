"""huggingface_hub's InferenceClient: OpenAI's chat, and TGI's text generation."""

from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, ValidationError

from tests.conformance.stack import Stack, said
from tests.gateway.harness import MODEL

CONTENT = "Grüße 你好 👩‍👩‍👧"
CHAT: Any = [{"role": "user", "content": CONTENT}]


@pytest.fixture
def chatting(stack: Stack) -> InferenceClient:
    return InferenceClient(base_url=stack.base_url, api_key=stack.key, timeout=20)


@pytest.fixture
def generating(stack: Stack) -> InferenceClient:
    return InferenceClient(model=stack.url, token=stack.key, timeout=20)


def test_chat(chatting: InferenceClient) -> None:
    answer = chatting.chat_completion(CHAT, model=MODEL, max_tokens=200)
    assert answer.choices[0].message.content == said(CONTENT)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(chatting: InferenceClient) -> None:
    usage: Any = {"include_usage": True}
    stream = chatting.chat_completion(CHAT, model=MODEL, max_tokens=200, stream=True, stream_options=usage)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said(CONTENT)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None


def test_without_a_model_name_the_default_model_answers(chatting: InferenceClient) -> None:
    """The client then sends `dummy`."""
    assert chatting.chat_completion(CHAT, max_tokens=200).choices[0].message.content == said(CONTENT)


def test_several_choices(chatting: InferenceClient) -> None:
    answer = chatting.chat_completion(CHAT, model=MODEL, max_tokens=200, n=2)
    assert [choice.message.content for choice in answer.choices] == [said(CONTENT)] * 2


def test_chat_with_log_probabilities(chatting: InferenceClient) -> None:
    answer = chatting.chat_completion(CHAT, model=MODEL, max_tokens=4, logprobs=True, top_logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [entry.token for entry in logprobs.content] == ["<|im_start|>", "u", "s", "e"]


def test_text_generation(generating: InferenceClient) -> None:
    assert generating.text_generation("abc", max_new_tokens=7) == "abcabca"


def test_text_generation_with_details(generating: InferenceClient) -> None:
    answer: Any = generating.text_generation(
        "abc", max_new_tokens=4, details=True, decoder_input_details=True, return_full_text=True
    )
    assert answer.generated_text == "abcabca"
    assert (answer.details.finish_reason, answer.details.generated_tokens) == ("length", 4)
    assert [token.text for token in answer.details.tokens] == list("abca")
    assert [token.text for token in answer.details.prefill] == list("abc")


def test_text_generation_stream(generating: InferenceClient) -> None:
    assert "".join(generating.text_generation(CONTENT, max_new_tokens=200, stream=True)).startswith(CONTENT)
    events: Any = list(generating.text_generation("abc", max_new_tokens=7, stream=True, details=True))
    assert "".join(event.token.text for event in events if not event.token.special) == "abcabca"
    assert [event.generated_text for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].generated_text == "abcabca"
    assert (events[-1].details.finish_reason, events[-1].details.generated_tokens) == ("length", 7)


def test_text_generation_stops(generating: InferenceClient) -> None:
    answer: Any = generating.text_generation("say stop now", max_new_tokens=40, stop=["stop"], details=True)
    assert (answer.generated_text, answer.details.finish_reason) == ("say ", "stop_sequence")


async def test_the_asynchronous_client(stack: Stack) -> None:
    async with AsyncInferenceClient(model=stack.url, token=stack.key, timeout=20) as client:
        events = await client.text_generation("abc", max_new_tokens=7, stream=True)
        assert "".join([piece async for piece in events]) == "abcabca"


def test_health_and_info(stack: Stack) -> None:
    client = InferenceClient(model=stack.url, token=stack.key, provider="hf-inference")
    assert client.health_check()
    info = client.get_endpoint_info()
    assert (info["model_id"], info["max_total_tokens"]) == (MODEL, 512)


def test_a_bad_key(stack: Stack) -> None:
    client = InferenceClient(base_url=stack.base_url, api_key=stack.deployment.keys["unknown"])
    with pytest.raises(HfHubHTTPError) as refused:
        client.chat_completion(CHAT, model=MODEL)
    assert refused.value.response is not None
    assert refused.value.response.status_code == 401


def test_a_prompt_that_is_too_long(generating: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="context"):
        generating.text_generation("x" * 600)
