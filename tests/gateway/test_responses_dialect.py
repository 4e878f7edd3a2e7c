"""`/v1/responses`: what bodies mean, and that OpenAI's own client accepts every object and event it gets."""

import json
from typing import Any, cast

import httpx2  # openai's own
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, OpenAI
from openai._models import validate_type
from openai.types.responses import Response, ResponseStreamEvent

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, Row, Usage
from gateway.dialects.base import Event, Renderer, Whole, WholeChoice
from gateway.dialects.responses import RESPONSES
from gateway.dialects.responses.events import AnyResponsesEvent
from gateway.dialects.responses.objects import Response as ResponseStruct
from gateway.errors import ApiError, LimitDetail
from gpuworker.wire.messages import TokenLogprobs

HEAD = Head(
    request_id="019f0000-0000-7000-8000-000000000001",
    created=1_790_000_000,
    model="tiny",
    digest="d" * 64,
    klass="interactive",
    prompt_tokens=(3,),
)
USAGE = Usage(3, 2, 5)
LOGPROBS = [TokenLogprobs(104, -0.5, [(104, -0.5), (240, float("-inf"))])]


class ByteTokens:
    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def is_special(self, token: int) -> bool:
        return False


def body(**parameters: Any) -> bytes:
    return json.dumps({"model": "tiny", "input": "hi"} | parameters).encode()


def renderer(**parameters: Any) -> Renderer:
    """As for an answer that was stored meanwhile: from options that were put away and read again."""
    options = RESPONSES.parse(body(**parameters)).options
    stored = msgspec.msgpack.encode(options)
    return RESPONSES.renderer(msgspec.msgpack.decode(stored, type=RESPONSES.options_type), HEAD, ByteTokens())


def events_of(rows: list[Row], reason: str = "stop", **parameters: Any) -> list[Event]:
    """In the order in which an answer asks for them: the first row comes before the opening."""
    given_renderer = renderer(**parameters)
    deltas = [Event(data, given_renderer.delta_name) for row in rows if (data := given_renderer.delta(row))]
    closing = given_renderer.closing([ChoiceEnd(0, reason, len(rows))], USAGE)
    return [*given_renderer.opening(), *deltas, *closing]


def framed(events: list[Event]) -> bytes:
    return b"".join(sse.frame(number, event.name, event.data) for number, event in enumerate(events, 1))


def client_of(content: bytes, content_type: str) -> OpenAI:
    headers = {"content-type": content_type}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=content))
    return OpenAI(
        api_key="k",
        base_url="http://gateway/v1",
        http_client=httpx2.Client(transport=transport),
        _strict_response_validation=True,
    )


def client_validate(event: Event) -> None:
    """Strictly, as the client does where it is told to."""
    validate_type(type_=cast(type[Any], ResponseStreamEvent), value=json.loads(event.data))


# -- what the client receives --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "status", "cause"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_a_whole_response_is_what_the_client_expects(reason: str, status: str, cause: str | None) -> None:
    schema = {"type": "object", "properties": {}}
    text_format = {"type": "json_schema", "schema": schema}
    rendered = renderer(
        text={"format": text_format}, metadata={"a": "b"}, temperature=0.5, max_output_tokens=9, store=True
    ).whole(Whole([WholeChoice("hi", LOGPROBS, ChoiceEnd(0, reason, 5))], USAGE))
    response = client_of(rendered, "application/json").responses.create(model="tiny", input="hi")
    assert (response.status, response.output_text) == (status, "hi")
    assert (response.incomplete_details and response.incomplete_details.reason) == cause
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 5)
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert response.metadata == {"a": "b"}
    assert (response.temperature, response.max_output_tokens) == (0.5, 9)
    plain = json.loads(rendered)
    assert plain["store"] is False
    assert plain["instructions"] is None
    assert plain["text"]["format"] == text_format | {"name": "response"}
    (token,) = plain["output"][0]["content"][0]["logprobs"]
    assert token["bytes"] == [104]
    assert token["top_logprobs"][1]["logprob"] == -9999.0


def test_a_stream_has_its_events_in_order_and_the_client_builds_the_response_from_them() -> None:
    rows = [Row(0, 1, "he"), Row(0, 1, ""), Row(0, 1, "l\u2028lo", LOGPROBS)]
    events = events_of(rows, include=["message.output_text.logprobs"])
    kinds = [json.loads(event.data)["type"] for event in events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.name.decode() for event in events] == kinds
    client = client_of(framed(events), "text/event-stream")
    with client.responses.stream(model="tiny", input="hi") as stream:
        final = stream.get_final_response()
    assert final.output_text == "hel\u2028lo"


@given(
    pieces=st.lists(st.text(max_size=5), max_size=8),
    reason=st.sampled_from(["stop", "length"]),
    seed=st.data(),
)
def test_any_chunking_gives_valid_numbered_events_and_the_same_text(
    pieces: list[str], reason: str, seed: st.DataObject
) -> None:
    rows = [Row(0, 1, text, seed.draw(st.sampled_from([[], LOGPROBS]))) for text in pieces]
    events = events_of(rows, reason)
    decoded = [json.loads(event.data) for event in events]
    assert [event["sequence_number"] for event in decoded] == list(range(len(events)))
    for event in events:
        assert len(event.data.decode().splitlines()) == 1
        client_validate(event)
        msgspec.json.decode(event.data, type=AnyResponsesEvent)
    text = "".join(pieces)
    last = decoded[-1]["response"]
    deltas = [event["delta"] for event in decoded if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text
    assert decoded[-4]["text"] == decoded[-3]["part"]["text"] == text
    assert last["output"] == [decoded[-2]["item"]]
    assert last["output"][0]["content"][0]["text"] == text
    assert events == events_of(rows, reason)


@pytest.mark.parametrize(("stopped_by", "shown"), [(None, 2), ("x", 1)])
def test_log_probabilities_come_with_their_text_and_never_of_a_stop_string(
    stopped_by: str | None, shown: int
) -> None:
    given_renderer = renderer(top_logprobs=2)
    assert given_renderer.delta(Row(0, 1, "", LOGPROBS)) == b""
    (delta,) = [json.loads(given_renderer.delta(Row(0, 0, "h")))]
    assert len(delta["logprobs"]) == 1
    given_renderer.delta(Row(0, 1, "", LOGPROBS))  # held back, for it may begin a stop string
    closing = given_renderer.closing([ChoiceEnd(0, "stop", 2, stopped_by)], USAGE)
    assert len(json.loads(closing[0].data)["logprobs"]) == shown


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_failing_stream_makes_the_client_raise_and_ends_in_a_failed_response(has_begun: bool) -> None:
    given_renderer = renderer()
    events: list[Event] = []
    if has_begun:
        delta = Event(given_renderer.delta(Row(0, 1, "par")), given_renderer.delta_name)
        events = [*given_renderer.opening(), delta]
    limit = LimitDetail(name="queue", scope="model", subject="tiny", limit=4)
    events += given_renderer.failed(ApiError("queue_full", "too many wait", limit=limit))
    decoded = [json.loads(event.data) for event in events]
    assert [event["sequence_number"] for event in decoded] == list(range(len(events)))
    for event in events:
        client_validate(event)
    assert (decoded[-2]["type"], decoded[-2]["code"]) == ("error", "queue_full")
    assert decoded[-2]["error"]["limit"]["subject"] == "tiny"
    assert decoded[-1]["type"] == "response.failed"
    assert decoded[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
    texts = [item["content"][0]["text"] for item in decoded[-1]["response"]["output"]]
    assert texts == (["par"] if has_begun else [])
    client = client_of(framed(events), "text/event-stream")
    with pytest.raises(APIError) as raised:
        list(client.responses.create(model="tiny", input="hi", stream=True))
    assert raised.value.code == "queue_full"


def test_the_structs_describe_what_the_client_describes() -> None:
    """Every field that the client requires is one of ours, so the reference shows it."""
    required = {name for name, field in Response.model_fields.items() if field.is_required()}
    assert required <= set(ResponseStruct.__struct_fields__)


# -- what the client may ask for -----------------------------------------------------------------------------


def test_instructions_and_items_become_messages() -> None:
    sent = body(
        instructions="be brief",
        input=[
            {"role": "developer", "content": "rules"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
        ],
    )
    (prompt,) = RESPONSES.parse(sent).generation.prompts
    assert prompt.messages is not None
    assert [(message.role, message.content) for message in prompt.messages] == [
        ("system", "be brief"),
        ("system", "rules"),
        ("user", "a"),
        ("assistant", "bno"),
    ]


def test_parameters_are_translated() -> None:
    schema = {"type": "object"}
    generation = RESPONSES.parse(
        body(
            stream=True,
            max_output_tokens=7,
            temperature=0,
            top_p=0,
            seed=-1,
            service_tier="flex",
            text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
            include=["message.output_text.logprobs", "reasoning.encrypted_content"],
            top_logprobs=4,
            resumable=True,
        )
    ).generation
    assert (generation.stream, generation.max_tokens, generation.klass) == (True, 7, "batch")
    assert (generation.sampling.top_p, generation.sampling.top_k) == (1.0, 1)
    assert (generation.sampling.seed, generation.sampling.logprobs) == (2**64 - 1, 4)
    assert generation.grammar is not None
    assert (generation.grammar.kind, json.loads(generation.grammar.text)) == ("json_schema", schema)
    assert generation.resumable


@pytest.mark.parametrize(
    "neutral",
    [
        {"background": False, "conversation": None, "previous_response_id": None, "truncation": "disabled"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "max_tool_calls": 3},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": "none"},
        {"reasoning": {"effort": None, "summary": "auto"}, "text": {"verbosity": "medium"}},
        {"store": True, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
)
def test_what_asks_for_nothing_is_accepted(neutral: dict[str, Any]) -> None:
    RESPONSES.parse(body(**neutral))


@pytest.mark.parametrize(
    ("parameters", "code", "param"),
    [
        ({"input": []}, "invalid_value", "input"),
        ({"input": 3}, "invalid_type", "input"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": "function_call_output"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"content": "x"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "unsupported_parameter",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "missing_required_parameter",
            "input[0].content[0].text",
        ),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"seed": 2**65}, "invalid_value", "seed"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"include": ["all"]}, "invalid_type", "include[0]"),
        ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
        ({"tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"reasoning": {"effort": "high"}}, "unsupported_parameter", "reasoning.effort"),
        ({"text": {"verbosity": "low"}}, "unsupported_parameter", "text.verbosity"),
        (
            {"text": {"format": {"type": "json_schema"}}},
            "missing_required_parameter",
            "text.format.schema",
        ),
        ({"stream_options": {"include_obfuscation": True}}, "invalid_value", "stream_options"),
        ({"metadata": {str(number): "" for number in range(17)}}, "invalid_value", "metadata"),
        ({"messages": []}, "unknown_parameter", "messages"),
    ],
)
def test_the_refusal_names_the_parameter(parameters: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as raised:
        RESPONSES.parse(body(**parameters))
    assert (raised.value.code, raised.value.param) == (code, param)
    status, envelope = RESPONSES.error(raised.value, HEAD.request_id)
    assert (status, json.loads(envelope)["error"]["code"]) == (400, code)
