"""SSE framing: whatever the model says, every client's way of splitting lines finds exactly our events."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import sse
from gateway.answer_parts import Head, Row
from gateway.dialects.base import Renderer
from gateway.dialects.openai.chat import CHAT
from gateway.dialects.openai.completions import COMPLETIONS, CompletionOptions
from gateway.dialects.openai.rendering import OpenAIOptions
from gateway.errors import ApiError
from tests.gateway.vocabulary import NO_TOKENS

HEAD = Head(
    request_id="0198c0de-0000-7000-8000-000000000001",
    created=1,
    model="tiny",
    digest="d" * 64,
    klass="interactive",
    prompt_tokens=(3,),
    n=2,
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
TRICKY = st.text(st.sampled_from('\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00"\\: data😀é{}[]'), max_size=40)
# Family emoji with joiners, a flag, Arabic and Hebrew with marks, stacked combining marks, CJK, Hangul jamo.
SCRIPTS = "👩‍👩‍👧‍👦🏳️‍🌈🇺🇳 مَرْحَبًا שָׁלוֹם Z̴̛̠a̧͈l漢字かな交じり文 각 \u202eabc\u202c\ufeff"


def chat(*, include_usage: bool = False) -> Renderer:
    return CHAT.renderer(OpenAIOptions(include_usage=include_usage), HEAD, NO_TOKENS)


def completion() -> Renderer:
    return COMPLETIONS.renderer(CompletionOptions(), HEAD, NO_TOKENS)


def stream(renderer: Renderer, texts: list[str], choice: int = 0) -> bytes:
    deltas = [renderer.delta(Row(choice, 1, text)) for text in texts]
    return b"".join(sse.frame(0, b"", data) for data in deltas if data)


def parse(data: bytes) -> list[str]:
    """The WHATWG algorithm for what we send: fields by line, an event at each blank line."""
    events: list[str] = []
    lines: list[str] = []
    for line in data.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line == "":
            if lines:
                events.append("\n".join(lines))
            lines = []
        elif line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        else:
            assert line.startswith((":", "event:"))
    assert not lines
    return events


def parse_by_python_lines(data: bytes) -> list[str]:
    """As clients do that call str.splitlines, which knows eight more line ends."""
    return [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]


@given(st.lists(TEXTS | TRICKY, max_size=8), st.booleans())
def test_texts_survive_any_client(texts: list[str], include_usage: bool) -> None:
    data = stream(chat(include_usage=include_usage), texts)
    for parsed in (parse(data), parse_by_python_lines(data)):
        deltas = [json.loads(event)["choices"][0]["delta"]["content"] for event in parsed]
        assert deltas == [text for text in texts if text]


@given(st.lists(st.integers(0, len(SCRIPTS)), max_size=12), st.integers(0, 1))
def test_scripts_cut_anywhere_join_to_the_same_text(cuts: list[int], choice: int) -> None:
    edges = [0, *sorted(cuts), len(SCRIPTS)]
    pieces = [SCRIPTS[begin:end] for begin, end in itertools.pairwise(edges)]
    for renderer, path in ((chat(), ("delta", "content")), (completion(), ("text",))):
        joined = ""
        for event in parse(stream(renderer, pieces, choice)):
            (found,) = json.loads(event)["choices"]
            assert found["index"] == choice
            for name in path:
                found = found[name]
            joined += found
        assert joined == SCRIPTS


@given(st.lists(TEXTS | TRICKY, min_size=1, max_size=4))
def test_comments_between_events_change_nothing(texts: list[str]) -> None:
    renderer = completion()
    data = sse.PING + b"".join(stream(renderer, [text]) + sse.PING for text in texts)
    *events, done = parse(data + sse.frame(0, b"", sse.DONE))
    assert [json.loads(event)["choices"][0]["text"] for event in events] == [text for text in texts if text]
    assert done == "[DONE]"


@given(TEXTS | TRICKY)
def test_errors_are_one_event(message: str) -> None:
    (event,) = chat().failed(ApiError("engine_error", message))
    framed = sse.frame(0, event.name, event.data)
    assert framed.startswith(b"event: error\ndata: ")
    for parsed in (parse(framed), parse_by_python_lines(framed)):
        assert [json.loads(data)["error"]["message"] for data in parsed] == [message]


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_delta_is_the_chunk_it_stands_for(include_usage: bool) -> None:
    chunk = json.loads(chat(include_usage=include_usage).delta(Row(1, 1, "x")))
    assert chunk == {
        "id": "chatcmpl-0198c0de000070008000000000000001",
        "created": 1,
        "model": "tiny",
        "system_fingerprint": "fp_dddddddddddd",
        "service_tier": "default",
        "object": "chat.completion.chunk",
        "choices": [{"index": 1, "delta": {"content": "x"}, "logprobs": None, "finish_reason": None}],
    } | ({"usage": None} if include_usage else {})


def test_ids_only_for_those_who_asked_to_resume() -> None:
    assert sse.frame(3, b"", b"{}") == b"data: {}\n\n"
    assert sse.NumberedFraming("r")(3, b"error", b"{}") == b"id: r:3\nevent: error\ndata: {}\n\n"
