"""Every object that the OpenAI dialects make is what the official types say, whole and in events."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.answer_parts import ChoiceEnd, Head, PromptRow, Row, Usage
from gateway.dialects.base import Renderer, Whole, WholeChoice
from gateway.dialects.openai.chat import CHAT
from gateway.dialects.openai.completions import COMPLETIONS, CompletionOptions
from gateway.dialects.openai.rendering import OpenAIOptions
from gateway.errors import ApiError
from gpuworker.wire.messages import TokenLogprobs
from tests.gateway.vocabulary import Vocabulary

USAGE = Usage(prompt_tokens=5, cached_tokens=2, output_tokens=9)
USAGE_OBJECT = {
    "prompt_tokens": 5,
    "completion_tokens": 9,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}
GRIN = "😀".encode()
A, B, GRIN_1, GRIN_2, STOP, END, BAD = range(7)
TOKENS = Vocabulary(b"A", b" b", GRIN[:2], GRIN[2:], b"STOP", b"<|end|>", b"\xff", special=frozenset({END}))


def head(*, prompts: int = 1, n: int = 1, klass: str = "interactive") -> Head:
    return Head(
        request_id="0198c0de-0000-7000-8000-000000000001",
        created=1_700_000_000,
        model="tiny",
        digest="d" * 64,
        klass=klass,
        prompt_tokens=(2,) * prompts,
        n=n,
        first_tokens=(A,) * prompts,
    )


def told(token: int, *top: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, [(other, -0.25 - rank) for rank, other in enumerate(top)])


def chat(head_: Head, **options: Any) -> Renderer:
    return CHAT.renderer(OpenAIOptions(**options), head_, TOKENS)


def completion(head_: Head, **options: Any) -> Renderer:
    return COMPLETIONS.renderer(CompletionOptions(**options), head_, TOKENS)


def events(
    renderer: Renderer, rows: list[Row], ends: list[ChoiceEnd], prompt_rows: list[PromptRow] | None = None
) -> list[Any]:
    """Decoded, without the end mark."""
    sent = renderer.opening()
    for prompt_row in prompt_rows or []:
        sent += renderer.prompt_delta(prompt_row)
    data = [event.data for event in sent] + [renderer.delta(row) for row in rows]
    *closing, done = [event.data for event in renderer.closing(ends, USAGE)]
    assert done == b"[DONE]"
    return [json.loads(chunk) for chunk in [*data, *closing] if chunk]


def chat_chunks(renderer: Renderer, rows: list[Row], ends: list[ChoiceEnd]) -> list[ChatCompletionChunk]:
    chunks = events(renderer, rows, ends)
    return [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]


def completion_chunks(
    renderer: Renderer, rows: list[Row], ends: list[ChoiceEnd], prompt_rows: list[PromptRow] | None = None
) -> list[Any]:
    """Strictly checked, but for the reason that only a choice's last chunk has and the token without one."""
    chunks = events(renderer, rows, ends, prompt_rows)
    for chunk in chunks:
        Completion.model_validate(_as_the_type_says(chunk), strict=True)
    return chunks


def _as_the_type_says(answer: dict[str, Any]) -> dict[str, Any]:
    """The type wants a reason in every chunk and a number for a prompt's first token; OpenAI sends null."""
    copy: dict[str, Any] = json.loads(json.dumps(answer))
    for choice in copy["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        logprobs = choice["logprobs"] or {}
        if logprobs and logprobs["token_logprobs"][0] is None:
            del logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]
    return copy


def test_a_chat_in_events() -> None:
    rows = [Row(0, 1, "Hel"), Row(1, 1, "Yo"), Row(0, 1, "lo")]
    ends = [ChoiceEnd(0, "stop", 2), ChoiceEnd(1, "length", 1)]
    chunks = chat_chunks(chat(head(n=2, klass="batch"), include_usage=True), rows, ends)
    deltas = [(c.choices[0].index, c.choices[0].delta.role, c.choices[0].delta.content) for c in chunks[:-1]]
    assert deltas == [
        (0, "assistant", ""),
        (1, "assistant", ""),
        (0, None, "Hel"),
        (1, None, "Yo"),
        (0, None, "lo"),
        (0, None, None),
        (1, None, None),
    ]
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * 5 + ["stop", "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.to_dict() == USAGE_OBJECT
    assert all("usage" in c.model_fields_set and c.usage is None for c in chunks[:-1])
    assert {(c.id, c.created, c.model, c.service_tier) for c in chunks} == {
        ("chatcmpl-0198c0de000070008000000000000001", 1_700_000_000, "tiny", "flex")
    }


def test_without_include_usage_no_chunk_speaks_of_it() -> None:
    for renderer in (chat(head()), completion(head())):
        chunks = events(renderer, [Row(0, 1, "x")], [ChoiceEnd(0, "stop", 1)])
        assert all("usage" not in chunk for chunk in chunks)
        assert len(chunks[-1]["choices"]) == 1


def test_a_whole_chat() -> None:
    whole = Whole(
        [
            WholeChoice("Hello", [], ChoiceEnd(0, "stop", 2, ".")),
            WholeChoice("Yo", [], ChoiceEnd(1, "length", 1)),
        ],
        USAGE,
    )
    answer = ChatCompletion.model_validate_json(chat(head(n=2)).whole(whole), strict=True)
    assert [choice.message.content for choice in answer.choices] == ["Hello", "Yo"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert [choice.to_dict()["stop_reason"] for choice in answer.choices] == [".", None]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.to_dict() == USAGE_OBJECT
    assert answer.service_tier == "default"
    assert "prompt_logprobs" not in answer.to_dict()


def test_completions_number_their_choices_over_all_prompts() -> None:
    ends = [ChoiceEnd(choice, "stop", 1, 7) for choice in range(4)]
    rows = [Row(choice, 1, f"t{choice}") for choice in (3, 0, 2, 1)]
    chunks = completion_chunks(completion(head(prompts=2, n=2), include_usage=True), rows, ends)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:-1]] == [3, 0, 2, 1, 0, 1, 2, 3]
    assert [chunk["choices"][0]["stop_reason"] for chunk in chunks[4:-1]] == [7] * 4
    assert chunks[-1]["usage"] == USAGE_OBJECT
    whole = Whole([WholeChoice(f"t{choice}", [], end) for choice, end in enumerate(ends)], USAGE)
    body = completion(head(prompts=2, n=2)).whole(whole)
    answer = Completion.model_validate_json(body, strict=True)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "t0"),
        (1, "t1"),
        (2, "t2"),
        (3, "t3"),
    ]


def test_log_probabilities_of_a_chat_come_with_their_text() -> None:
    rows = [
        Row(0, 1, "A", [told(A, A, BAD)]),
        Row(0, 1, "", [told(GRIN_1, GRIN_1, A)]),
        Row(0, 1, "😀", [told(GRIN_2, A, B)]),
        Row(0, 1, "", [told(END, END, A)]),
    ]
    end = ChoiceEnd(0, "stop", 4)
    chunks = chat_chunks(chat(head(), logprobs=2), rows, [end])
    contents = [chunk.choices[0].logprobs and chunk.choices[0].logprobs.content for chunk in chunks]
    tokens = [[entry.token for entry in content or []] for content in contents]
    assert tokens == [[], ["A"], ["\ufffd", "\ufffd\ufffd"], ["<|end|>"]]
    half = (contents[2] or [])[0]
    assert half.bytes == list(GRIN[:2])
    assert [(top.token, top.logprob, top.bytes) for top in (contents[1] or [])[0].top_logprobs] == [
        ("A", -0.25, [65]),
        ("\ufffd", -1.25, [255]),
    ]
    whole = Whole([WholeChoice("A😀", [row.logprobs[0] for row in rows], end)], USAGE)
    answer = ChatCompletion.model_validate_json(chat(head(), logprobs=2).whole(whole), strict=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content == [entry for content in contents for entry in content or []]


def test_fewer_alternatives_than_were_asked_for_elsewhere() -> None:
    row = Row(0, 1, "A", [told(B, A, BAD)])
    (one,) = _logprobs(chat(head(), logprobs=1), row)["content"]
    assert [top["token"] for top in one["top_logprobs"]] == ["A"]
    (none,) = _logprobs(chat(head(), logprobs=0), row)["content"]
    assert none["top_logprobs"] == []


def test_an_impossible_token_has_a_number() -> None:
    row = Row(0, 1, "A", [TokenLogprobs(A, float("-inf"), [(B, float("-inf"))])])
    (entry,) = _logprobs(chat(head(), logprobs=1), row)["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    logprobs = _logprobs(completion(head(), logprobs=1), row)
    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{" b": -9999.0, "A": -9999.0}]


def _logprobs(renderer: Renderer, row: Row) -> dict[str, Any]:
    logprobs: dict[str, Any] = json.loads(renderer.delta(row))["choices"][0]["logprobs"]
    return logprobs


@pytest.mark.parametrize("make", [chat, completion])
def test_tokens_of_a_stop_string_are_not_told(make: Any) -> None:
    rows = [Row(0, 1, "A", [told(A)]), Row(0, 1, "", [told(STOP)])]
    end = ChoiceEnd(0, "stop", 2, "STOP")
    chunks = events(make(head(), logprobs=0), rows, [end])
    whole = Whole([WholeChoice("A", [told(A), told(STOP)], end)], USAGE)
    answer = json.loads(make(head(), logprobs=0).whole(whole))
    assert chunks[-1]["choices"][0]["logprobs"] is None
    for told_ in (json.dumps(chunks), json.dumps(answer["choices"][0]["logprobs"])):
        assert '"A"' in told_
        assert '"STOP"' not in told_.replace('"stop_reason": "STOP"', "")


def test_log_probabilities_of_a_completion() -> None:
    rows = [
        Row(0, 1, "A", [told(A, B)]),
        Row(0, 1, "", [told(GRIN_1, GRIN_1)]),
        Row(0, 1, "😀 b", [told(GRIN_2, GRIN_2), told(B, B)]),
    ]
    end = ChoiceEnd(0, "length", 4)
    chunks = completion_chunks(completion(head(), logprobs=1), rows, [end])
    first, second, last = (chunk["choices"][0] for chunk in chunks)
    assert first["logprobs"] == {
        "tokens": ["A"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{" b": -0.25, "A": -0.5}],
        "text_offset": [0],
    }
    assert second["logprobs"]["tokens"] == ["\ufffd", "\ufffd\ufffd", " b"]
    assert second["logprobs"]["text_offset"] == [1, 1, 2]  # both halves make one character
    assert last["logprobs"] is None
    tokens = [token for row in rows for token in row.logprobs]
    whole = Whole([WholeChoice("A😀 b", tokens, end)], USAGE)
    answer = json.loads(completion(head(), logprobs=1).whole(whole))
    Completion.model_validate(answer, strict=True)
    assert answer["choices"][0]["logprobs"] == joined_logprobs(chunks, 0)


def test_an_echo_tells_the_prompts_log_probabilities_first() -> None:
    options = {"echo": True, "logprobs": 1}
    prompt_rows = [PromptRow(1, 1, [told(B, A)]), PromptRow(1, 2, [told(END)])]
    rows = [Row(1, 1, "A bA", [told(A, A)]), Row(0, 0, "A")]
    ends = [ChoiceEnd(0, "length", 0), ChoiceEnd(1, "length", 1)]
    chunks = completion_chunks(completion(head(prompts=2), **options), rows, ends, prompt_rows)
    assert [(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks[:4]] == [
        (1, ""),
        (1, ""),
        (1, "A bA"),
        (0, "A"),
    ]
    joined = [joined_logprobs(chunks, choice) for choice in range(2)]
    assert joined[1] == {
        "tokens": ["A", " b", "<|end|>", "A"],
        "token_logprobs": [None, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {"A": -0.25, " b": -0.5}, {"<|end|>": -0.5}, {"A": -0.25}],
        "text_offset": [0, 1, 3, 3],  # a control token has no text
    }
    assert joined[0]["tokens"] == ["A"]  # a prompt of one token, of which nothing can be told
    whole = Whole(
        [WholeChoice("A", [], ends[0]), WholeChoice("A bA", [told(A, A)], ends[1])],
        USAGE,
        [[], [told(B, A), told(END)]],
    )
    answer = json.loads(completion(head(prompts=2), **options).whole(whole))
    Completion.model_validate(_as_the_type_says(answer), strict=True)
    assert [choice["logprobs"] for choice in answer["choices"]] == joined


def joined_logprobs(chunks: list[Any], choice: int) -> dict[str, list[Any]]:
    """Of all chunks of a choice, as clients put them together."""
    joined: dict[str, list[Any]] = {}
    for (chunk,) in (chunk["choices"] for chunk in chunks):
        if chunk["index"] == choice:
            for key, values in (chunk["logprobs"] or {}).items():
                joined.setdefault(key, []).extend(values)
    return joined


def test_an_echo_of_nothing_but_the_prompt() -> None:
    rows, ends = [Row(0, 0, "A b")], [ChoiceEnd(0, "length", 0)]
    chunks = completion_chunks(
        completion(head(), echo=True, logprobs=0), rows, ends, [PromptRow(0, 1, [told(B)])]
    )
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["", "A b", ""]
    assert joined_logprobs(chunks, 0)["tokens"] == ["A", " b"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_after_an_echo_takes_only_its_own_tokens() -> None:
    end = ChoiceEnd(0, "stop", 2, "STOP")
    whole = Whole([WholeChoice("A bA", [told(A), told(STOP)], end)], USAGE, [[told(B)]])
    answer = json.loads(completion(head(), echo=True, logprobs=0).whole(whole))
    assert answer["choices"][0]["logprobs"]["tokens"] == ["A", " b", "A"]


def test_prompt_log_probabilities_as_vllm_tells_them() -> None:
    rows = [told(B, A, B, BAD), told(END, A)]
    expected = [
        None,
        {
            "0": {"logprob": -0.25, "rank": 1, "decoded_token": "A"},
            "1": {"logprob": -1.25, "rank": 2, "decoded_token": " b"},
        },
        {
            "0": {"logprob": -0.25, "rank": 1, "decoded_token": "A"},
            "5": {"logprob": -0.5, "rank": None, "decoded_token": "<|end|>"},
        },
    ]
    whole = Whole([WholeChoice("x", [], ChoiceEnd(0, "stop", 1))], USAGE, [rows])
    answer = json.loads(chat(head(), prompt_logprobs=2).whole(whole))
    assert answer["prompt_logprobs"] == expected
    assert answer["choices"][0]["logprobs"] is None
    answer = json.loads(completion(head(), prompt_logprobs=2).whole(whole))
    assert answer["choices"][0]["prompt_logprobs"] == expected


@given(st.text(min_size=1, max_size=30), st.lists(st.integers(1, 4), max_size=60))
def test_offsets_point_into_the_text_wherever_tokens_are_cut(text: str, sizes: list[int]) -> None:
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    text = data.decode()
    pieces, begin = [], 0
    for size in [*sizes, *[3] * len(data)]:
        if data[begin:]:
            pieces.append(data[begin : begin + size])
            begin += size
    tokens = Vocabulary(*pieces)
    renderer = COMPLETIONS.renderer(CompletionOptions(logprobs=0), head(), tokens)
    rows = [TokenLogprobs(token, -1.0, []) for token in range(len(pieces))]
    whole = Whole([WholeChoice(text, rows, ChoiceEnd(0, "stop", len(rows)))], USAGE)
    logprobs = json.loads(renderer.whole(whole))["choices"][0]["logprobs"]
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        if "\ufffd" not in token:
            assert text[offset : offset + len(token)] == token


def test_the_same_parts_give_the_same_bytes() -> None:
    rows = [Row(0, 1, "A", [told(A, B)]), Row(0, 1, " b", [told(B, A)])]
    for make in (chat, completion):
        first, second = (make(head(), logprobs=1, include_usage=True) for _ in range(2))
        assert [first.delta(row) for row in rows] == [second.delta(row) for row in rows]


def test_options_survive_being_stored() -> None:
    for dialect, options in (
        (CHAT, OpenAIOptions(include_usage=True, logprobs=3)),
        (COMPLETIONS, CompletionOptions(echo=True, prompt_logprobs=1)),
    ):
        stored = msgspec.msgpack.encode(options)
        assert msgspec.msgpack.decode(stored, type=dialect.options_type) == options


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS])
def test_an_error_is_the_envelope(dialect: Any) -> None:
    status, body = dialect.error(ApiError("model_not_found", "no such model", param="model"), "id")
    assert status == 404
    assert json.loads(body)["error"] == {
        "message": "no such model",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
