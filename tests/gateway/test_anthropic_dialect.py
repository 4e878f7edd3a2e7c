"""The Messages API: Anthropic's own client is understood, and understands what it is sent."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import hypothesis.strategies as st
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from hypothesis import given
from pydantic import TypeAdapter

from gateway.access.auth import credentials
from gateway.answer_parts import ChoiceEnd, Row, Usage
from gateway.dialects.anthropic.count_tokens import count_tokens_parse, count_tokens_reply
from gateway.dialects.anthropic.messages import MESSAGES
from gateway.errors import ERRORS, ApiError, LimitDetail, overloaded
from gateway.generation import Message as Turn
from gpuworker.wire.messages import Grammar
from tests.gateway.dialect_server import BYTES, END, REQUEST_ID, DialectServer, Script, head_make

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
HELLO = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def server() -> Iterator[DialectServer]:
    with DialectServer({"/v1/messages": MESSAGES}) as server:
        yield server


@pytest.fixture
def client(server: DialectServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="sk-slc-key", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def parsed(**changes: object) -> Any:
    body = {**HELLO, **changes}
    return MESSAGES.parse(json.dumps({name: value for name, value in body.items() if value != ...}).encode())


def refusal(**changes: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(**changes)
    return caught.value


def rows(*texts: str) -> list[Row]:
    return [Row(0, 1, text) for text in texts]


# -- requests -----------------------------------------------------------------------------------------------


def test_the_client_is_understood(server: DialectServer, client: anthropic.Anthropic) -> None:
    server.script.rows = rows("Hi")
    client.messages.create(
        model="tiny",
        max_tokens=100,
        system=[
            {"type": "text", "text": "You are ", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "brief."},
        ],
        messages=[
            {"role": "user", "content": "One"},
            {"role": "user", "content": [{"type": "text", "text": "Two"}, {"type": "text", "text": "!"}]},
            {"role": "assistant", "content": "Three"},
            {"role": "user", "content": "Four"},
        ],
        stop_sequences=["\n\nHuman:", "###"],
        metadata={"user_id": "u-1"},
        service_tier="standard_only",
        thinking={"type": "disabled"},
        tools=[],
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 40},
    )
    (ask,) = server.asks
    generation = ask.generation
    assert generation.prompts[0].messages == (
        Turn("system", "You are brief."),
        Turn("user", "One\n\nTwo!"),
        Turn("assistant", "Three"),
        Turn("user", "Four"),
    )
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (generation.model, generation.max_tokens, generation.stream) == ("tiny", 100, False)
    assert generation.stop == ("\n\nHuman:", "###")
    assert (generation.klass, generation.n, generation.resumable) == ("interactive", 1, False)
    assert server.keys == [b"Bearer sk-slc-key"]


def test_a_bearer_token_serves_as_the_key_too() -> None:
    assert credentials({b"authorization": b"Bearer k"}) == b"Bearer k"
    assert credentials({b"x-api-key": b"k"}) == b"Bearer k"
    assert credentials({b"x-api-key": b"other", b"authorization": b"Bearer k"}) == b"Bearer k"
    assert credentials({}) is None


def test_unset_sampling_is_the_models_own_with_a_new_seed() -> None:
    first, second = (parsed().generation.sampling for _ in range(2))
    assert (first.temperature, first.top_p, first.top_k, first.logprobs) == (1.0, 1.0, 0, -1)
    assert first.seed != second.seed
    assert parsed(top_p=0).generation.sampling.top_k == 1


def test_an_output_format_becomes_a_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    generation = parsed(output_config=config).generation
    assert generation.grammar == Grammar(kind="json_schema", text=json.dumps(schema, separators=(",", ":")))
    assert generation.names.grammar == "output_config.format.schema"


def test_tools_that_must_not_be_used_are_let_through() -> None:
    tools = [{"name": "get_weather", "input_schema": {"type": "object"}}]
    assert parsed(tools=tools, tool_choice={"type": "none"}).generation.prompts
    assert parsed(tool_choice={"type": "auto"}).generation.prompts
    assert refusal(tools=tools).param == "tools"
    assert refusal(tools=tools, tool_choice={"type": "auto"}).param == "tools"
    assert refusal(tool_choice={"type": "tool", "name": "get_weather"}).param == "tool_choice"


def content(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"max_tokens": ...}, "missing_required_parameter", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": "9"}, "invalid_type", "max_tokens"),
        ({"model": ""}, "invalid_value", "model"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        (content({"type": "image", "source": {}}), "unsupported_parameter", "messages[0].content[0].type"),
        (
            content({"type": "text", "text": "a"}, {"type": "document", "source": {}}),
            "unsupported_parameter",
            "messages[0].content[1].type",
        ),
        (content({"type": "text"}), "missing_required_parameter", "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "unsupported_parameter",
            "messages[1].role",
        ),
        ({"system": [{"type": "image"}]}, "unsupported_parameter", "system[0].type"),
        ({"temperature": 1.5}, "invalid_value", "temperature"),
        ({"top_p": 2}, "invalid_value", "top_p"),
        ({"top_k": -1}, "invalid_value", "top_k"),
        ({"stop_sequences": [""]}, "invalid_value", "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "invalid_value", "stop_sequences"),
        ({"service_tier": "flex"}, "invalid_value", "service_tier"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "unsupported_parameter", "thinking"),
        ({"speed": "fast"}, "unsupported_parameter", "speed"),
        ({"container": "c"}, "unsupported_parameter", "container"),
        ({"output_config": {"effort": "low"}}, "unsupported_parameter", "output_config.effort"),
        (
            {"output_config": {"format": {"type": "xml", "schema": {}}}},
            "invalid_value",
            "output_config.format.type",
        ),
        ({"mcp_servers": []}, "unknown_parameter", "mcp_servers"),
        ({"resumable": True}, "unknown_parameter", "resumable"),
    ],
)
def test_what_cannot_be_served_is_named(changes: dict[str, object], code: str, param: str) -> None:
    error = refusal(**changes)
    assert (error.code, error.param, error.status) == (code, param, 400)


def test_counting_tokens_takes_the_prompt_alone() -> None:
    body = {"model": "tiny", "system": "S", "messages": HELLO["messages"]}
    generation = count_tokens_parse(json.dumps(body).encode())
    assert generation.prompts[0].messages == (Turn("system", "S"), Turn("user", "Hello"))
    with pytest.raises(ApiError) as caught:
        count_tokens_parse(json.dumps(HELLO).encode())
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "max_tokens")
    assert MessageTokensCount.model_validate_json(count_tokens_reply(12), strict=True).input_tokens == 12


# -- answers ------------------------------------------------------------------------------------------------


ENDS = [
    (ChoiceEnd(0, "stop", 3, END), "end_turn", None),
    (ChoiceEnd(0, "stop", 3, None), "end_turn", None),  # a grammar is complete
    (ChoiceEnd(0, "length", 3), "max_tokens", None),
    (ChoiceEnd(0, "stop", 3, "###"), "stop_sequence", "###"),
]


@pytest.mark.parametrize(("end", "reason", "sequence"), ENDS)
def test_a_message_says_why_it_ended(
    server: DialectServer, client: anthropic.Anthropic, end: ChoiceEnd, reason: str, sequence: str | None
) -> None:
    server.script = Script(rows=rows("Hel", "", "lo"), ends=[end], usage=Usage(7, 4, 3))
    message = client.messages.create(**HELLO)  # type: ignore[call-overload]
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello")]
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert (message.id, message.model) == ("msg_" + REQUEST_ID.replace("-", ""), "tiny")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 4, 3)


@pytest.mark.parametrize(("end", "reason", "sequence"), ENDS)
def test_a_stream_ends_as_the_whole_message_does(
    server: DialectServer, client: anthropic.Anthropic, end: ChoiceEnd, reason: str, sequence: str | None
) -> None:
    server.script = Script(rows=rows("Hel", "", "lo"), ends=[end], usage=Usage(7, 4, 3))
    with client.messages.stream(**HELLO) as stream:  # type: ignore[arg-type]
        assert list(stream.text_stream) == ["Hel", "lo"]
        streamed = stream.get_final_message()
    whole = client.messages.create(**HELLO)  # type: ignore[call-overload]
    assert streamed.to_dict() == whole.to_dict()
    assert (streamed.stop_reason, streamed.stop_sequence) == (reason, sequence)


def test_events_come_in_the_apis_order_and_validate() -> None:
    events = Script(rows=rows("a", "b")).events(MESSAGES.renderer(parsed().options, head_make(), BYTES))
    assert [name.decode() for name, _ in events] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    for name, data in events:
        assert json.loads(data)["type"] == name.decode()
        if name != b"ping":
            EVENT.validate_json(data)
    start = json.loads(events[0][1])["message"]
    assert (start["usage"]["input_tokens"], start["stop_reason"], start["content"]) == (7, None, [])


def test_a_message_without_text_is_a_message(server: DialectServer, client: anthropic.Anthropic) -> None:
    server.script = Script(usage=Usage(7, 0, 1))
    with client.messages.stream(**HELLO) as stream:  # type: ignore[arg-type]
        assert stream.get_final_text() == ""
    assert client.messages.create(**HELLO).content[0].text == ""  # type: ignore[call-overload]


@given(texts=st.lists(st.text(max_size=8), max_size=8))
def test_text_arrives_as_it_was_in_one_line_each(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    script = Script(rows=rows(*texts))
    events = script.events(MESSAGES.renderer(parsed().options, head_make(), BYTES))
    deltas = [data for name, data in events if name == b"content_block_delta"]
    assert "".join(json.loads(data)["delta"]["text"] for data in deltas) == "".join(texts)
    whole = MESSAGES.renderer(parsed().options, head_make(), BYTES).whole(script.whole())
    assert Message.model_validate_json(whole).content[0].text == "".join(texts)  # type: ignore[union-attr]
    for data in [whole, *(data for _, data in events)]:
        assert len(data.decode().splitlines()) == 1


# -- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind", "raised"),
    [
        ("invalid_value", 400, "invalid_request_error", anthropic.BadRequestError),
        ("context_length_exceeded", 400, "invalid_request_error", anthropic.BadRequestError),
        ("invalid_api_key", 401, "authentication_error", anthropic.AuthenticationError),
        ("model_not_allowed", 403, "permission_error", anthropic.PermissionDeniedError),
        ("model_not_found", 404, "not_found_error", anthropic.NotFoundError),
        ("request_too_large", 413, "request_too_large", anthropic.APIStatusError),
        ("queue_full", 429, "rate_limit_error", anthropic.RateLimitError),
        ("engine_error", 500, "api_error", anthropic.InternalServerError),
        ("overloaded", 529, "overloaded_error", anthropic.APIStatusError),
        ("gateway_stopping", 529, "overloaded_error", anthropic.APIStatusError),
        ("deadline_exceeded", 504, "timeout_error", anthropic.APIStatusError),
    ],
)
def test_errors_have_anthropics_types_and_our_codes(
    server: DialectServer,
    client: anthropic.Anthropic,
    code: str,
    status: int,
    kind: str,
    raised: type[anthropic.APIStatusError],
) -> None:
    server.script.failure = ApiError(code, "it went wrong", param="messages")
    with pytest.raises(raised) as caught:
        client.messages.create(**HELLO)  # type: ignore[call-overload]
    error = caught.value
    assert (error.status_code, error.type, error.api_message) == (status, kind, "it went wrong")
    assert error.error_code == code
    body = error.body
    assert isinstance(body, dict)
    assert (body["request_id"], body["error"]["details"]["param"]) == (REQUEST_ID, "messages")


def test_every_error_is_one_that_the_sdk_knows() -> None:
    for code, (status, _) in ERRORS.items():
        shown_status, body = MESSAGES.error(ApiError(code, "x"), REQUEST_ID)
        assert shown_status in (status, 529)
        if code != "request_too_large":  # documented, but not among the SDK's types
            ErrorResponse.model_validate_json(body)


def test_a_limit_is_explained() -> None:
    limit = LimitDetail(name="open_requests", scope="gateway", subject="g", used=9, limit=9)
    status, body = MESSAGES.error(overloaded("too many requests", limit=limit), REQUEST_ID)
    assert status == 529
    assert json.loads(body)["error"]["details"]["limit"]["name"] == "open_requests"


def test_a_stream_that_fails_ends_in_an_error_event(
    server: DialectServer, client: anthropic.Anthropic
) -> None:
    server.script = Script(rows=rows("Hel"), failure=ApiError("replica_lost", "the replica was lost"))
    seen: list[str] = []
    with pytest.raises(anthropic.APIStatusError) as caught, client.messages.stream(**HELLO) as stream:  # type: ignore[arg-type]
        seen += stream.text_stream
    assert seen == ["Hel"]
    assert (caught.value.type, caught.value.error_code) == ("api_error", "replica_lost")
    events = server.script.events(MESSAGES.renderer(parsed().options, head_make(), BYTES))
    assert events[-1][0] == b"error"
    assert json.loads(events[-1][1])["request_id"] == REQUEST_ID
