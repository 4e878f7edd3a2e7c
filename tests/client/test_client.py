"""What the client sends, where to, and what it takes from its surroundings."""

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from sluice_client import AsyncSluice, ConfigurationError, ResumePolicy, Sluice, StreamLost
from sluice_client.policy import may_retry, retry_after_s
from tests.client.answers import Resumable
from tests.client.conftest import QUICK, client_of
from tests.client.server import Exchange, serving

MESSAGES: Any = [{"role": "user", "content": "hello"}]
WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Hello"},
            "text": "Hello",
        }
    ],
}


def answering(exchange: Exchange) -> None:
    exchange.answer(200, WHOLE, "x-request-id: r-1")


def test_answers_in_one_piece_carry_a_key_of_their_own() -> None:
    with client_of(answering) as (client, server):
        answer = client.chat.create(
            model="tiny", messages=MESSAGES, max_tokens=3, extra_headers={"x-mine": "1"}
        )
        client.completions.create(model="tiny", prompt="hello", idempotency_key="mine")
    assert answer.choices[0].message.content == "Hello"
    first, second = server.exchanges
    assert first.json() == {"model": "tiny", "messages": MESSAGES, "max_tokens": 3}
    assert len(first.headers["idempotency-key"]) == 36
    assert first.headers["x-mine"] == "1"
    assert second.headers["idempotency-key"] == "mine"
    assert second.path == "/v1/completions"
    assert "x-stream-resume" not in first.headers


async def test_answers_in_one_piece_for_code_that_awaits() -> None:
    with serving(answering) as server:
        async with AsyncSluice(server.base_url, "k") as client:
            answer = await client.chat.create(model="tiny", messages=MESSAGES)
            await client.completions.create(model="tiny", prompt="hello")
            assert await client.usage("r/1") == WHOLE
    assert answer.choices[0].message.content == "Hello"
    assert server.exchanges[2].path == "/v1/usage/r%2F1"


def test_a_repeated_request_has_the_same_key() -> None:
    statuses = iter([503, 409])

    def script(exchange: Exchange) -> None:
        for status in statuses:
            return exchange.refuse(status, "overloaded", "retry-after-ms: 1")
        return answering(exchange)

    with client_of(script) as (client, server):
        client.chat.create(model="tiny", messages=MESSAGES)
    assert len(server.exchanges) == 3
    assert len({exchange.headers["idempotency-key"] for exchange in server.exchanges}) == 1


def test_a_stream_takes_the_official_clients_arguments() -> None:
    earlier: Any = ChatCompletionMessage(role="assistant", content="Hi")
    with client_of(Resumable(cuts=(0,))) as (client, server):
        client.chat.stream(
            model="tiny",
            messages=(message for message in [*MESSAGES, earlier]),
            extra_body={"top_k": 5},
            extra_headers={"x-mine": "1"},
            stream_options={"include_usage": True},
        ).read()
    first, again = server.exchanges  # nothing had arrived: the same request once more
    assert first.json() == again.json()
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert first.headers["x-mine"] == "1"
    body = first.json()
    assert body["messages"][1]["content"] == "Hi"
    assert (body["top_k"], body["stream"], body["stream_options"]) == (5, True, {"include_usage": True})


def test_a_stream_in_one_piece_is_a_mistake() -> None:
    with client_of(answering) as (client, _), pytest.raises(TypeError, match=r"use stream\(\)"):
        client.chat.create(model="tiny", messages=MESSAGES, stream=True)


@pytest.mark.parametrize("key", ["", "x" * 256, "ключ", "a\nb"])
def test_keys_that_no_server_takes(key: str) -> None:
    with client_of(answering) as (client, server):
        with pytest.raises(ValueError, match="idempotency key"):
            client.chat.stream(model="tiny", messages=MESSAGES, idempotency_key=key)
        with pytest.raises(ValueError, match="idempotency key"):
            client.chat.create(model="tiny", messages=MESSAGES, idempotency_key=key)
    assert server.exchanges == []


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "not-for-this-server")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example/v1")
    with pytest.raises(ConfigurationError, match="SLUICE_API_KEY"):
        Sluice()
    monkeypatch.setenv("SLUICE_API_KEY", " sk-slc-1\n")
    assert str(Sluice().openai.base_url) == "http://127.0.0.1:8000/v1/"
    with serving(lambda exchange: exchange.answer(200, {"object": "list", "data": []})) as server:
        monkeypatch.setenv("SLUICE_BASE_URL", server.base_url.removesuffix("/v1"))
        with Sluice() as client:
            assert list(client.models.list()) == []
            client.usage("r-1")
    for exchange in server.exchanges:
        assert exchange.path.startswith("/v1/")
        assert exchange.headers["authorization"] == "Bearer sk-slc-1"
        assert not any("not-for-this-server" in value for value in exchange.headers.values())


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8000", "//x/v1"])
def test_what_is_no_base_url_is_named(url: str) -> None:
    with pytest.raises(ConfigurationError, match="base URL"):
        Sluice(url, "k")


def test_no_server() -> None:
    with serving(answering) as server:
        url = server.base_url
    with (
        Sluice(url, "k", resume=QUICK, max_retries=0) as client,
        pytest.raises(openai.APIConnectionError) as raised,
    ):
        client.chat.stream(model="tiny", messages=MESSAGES).read()
    assert not isinstance(raised.value, StreamLost)


def test_waits_grow_and_are_bounded() -> None:
    policy = ResumePolicy(first_wait_s=0.1, max_wait_s=5.0)
    longest = [policy.wait_s(attempt, 0.0) for attempt in range(1, 11)]
    assert longest == sorted(longest)
    assert (longest[0], longest[-1]) == (0.1, 5.0)
    assert policy.wait_s(1, 0.999) >= 0.05
    assert policy.wait_s(10_000, 0.0) == 5.0


@pytest.mark.parametrize("wrong", [{"attempts": -1}, {"total_s": -1}, {"silence_s": 0}])
def test_policies_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"attempts|waits"):
        ResumePolicy(**wrong)


def test_what_a_refusal_says_about_coming_again() -> None:
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after_s({"retry-after": "9"}) == 9.0
    for nonsense in ("soon", "nan", "inf", "-1", ""):
        assert retry_after_s({"retry-after": nonsense}) == 0.0
    told = [({}, 503), ({}, 409), ({"x-should-retry": "true"}, 400)]
    assert all(may_retry(status, headers) for headers, status in told)
    told = [({}, 400), ({"x-should-retry": "false"}, 429)]
    assert not any(may_retry(status, headers) for headers, status in told)
