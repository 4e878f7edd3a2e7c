"""Values that published clients send are understood as they mean them, and everything else is refused."""

import json
from typing import Any

import msgspec
import pytest

from gateway.dialects.base import Ask
from gateway.dialects.openai.chat import CHAT
from gateway.dialects.openai.completions import COMPLETIONS, CompletionOptions
from gateway.dialects.openai.rendering import OpenAIOptions
from gateway.dialects.openai.schema import ChatBody, CompletionBody
from gateway.errors import ApiError
from gateway.generation import Generation, Message, Names, Prompt


def chat_ask(**fields: Any) -> Ask:
    document = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    return CHAT.parse(json.dumps(document).encode())


def chat(**fields: Any) -> Generation:
    return chat_ask(**fields).generation


def completion_ask(**fields: Any) -> Ask:
    return COMPLETIONS.parse(json.dumps({"model": "tiny", "prompt": "hi", **fields}).encode())


def completion(**fields: Any) -> Generation:
    return completion_ask(**fields).generation


def test_seeds_differ_over_all_64_bits() -> None:
    seeds = [-(1 << 63), -1, 0, (1 << 63) - 1, 1 << 63]
    assert len({chat(seed=seed).sampling.seed for seed in seeds}) == 4  # -2**63 and 2**63: the same bits
    assert chat(seed=-1).sampling.seed == chat(seed=(1 << 64) - 1).sampling.seed == (1 << 64) - 1


@pytest.mark.parametrize("seed", [9223372036854776000, -9223372036854776000, 18446744073709552000])
def test_bounds_as_javascript_writes_them_are_seeds(seed: int) -> None:
    assert 0 <= chat(seed=seed).sampling.seed < 1 << 64


def test_top_p_of_0_is_greedy() -> None:
    sampling = chat(top_p=0, top_k=50).sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


@pytest.mark.parametrize(
    ("fields", "klass"),
    [
        ({}, "interactive"),
        ({"service_tier": "scale"}, "interactive"),
        ({"service_tier": "flex"}, "batch"),
        ({"priority": 1}, "batch"),
        ({"priority": -5}, "interactive"),
        ({"priority": 1, "service_tier": "auto"}, "batch"),
        ({"priority": 0, "service_tier": "flex"}, "batch"),
        ({"priority": 7, "service_tier": "flex"}, "batch"),
        ({"priority": -1, "service_tier": "priority"}, "interactive"),
    ],
)
def test_tier_and_priority_choose_the_class(fields: dict[str, Any], klass: str) -> None:
    assert chat(**fields).klass == klass


@pytest.mark.parametrize(
    "fields",
    [{"content": None, "refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}],
    ids=["message", "part"],
)
def test_a_refusal_is_what_the_assistant_said(fields: dict[str, Any]) -> None:
    (prompt,) = chat(messages=[{"role": "assistant", **fields}]).prompts
    assert prompt.messages == (Message("assistant", "no"),)


def test_what_shapes_sampling_reaches_the_worker() -> None:
    checked = chat(
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-0.5,
        frequency_penalty=2,
        min_tokens=3,
        logit_bias={"7": -100, "9": 2.5},
        stop_token_ids=[4, 5],
        stop="end",
        ignore_eos=True,
        truncate_prompt_tokens=9,
        cache_salt="salt",
        resumable=True,
    )
    sampling = checked.sampling
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-0.5, 2)
    assert (sampling.min_tokens, sampling.logit_bias) == (3, [(7, -100), (9, 2.5)])
    assert (sampling.logprobs, sampling.prompt_logprobs) == (-1, -1)
    assert (checked.stop_token_ids, checked.stop) == ((4, 5), ("end",))
    assert (checked.ignore_eos, checked.truncate_prompt_tokens) == (True, 9)
    assert (checked.cache_salt, checked.resumable) == ("salt", True)
    assert checked.grammar is None


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", (Prompt(text="one"),)),
        (["one"], (Prompt(text="one"),)),
        (["one", ""], (Prompt(text="one"), Prompt(text=""))),
        ([1, 2], (Prompt(ids=(1, 2)),)),
        ([[1, 2], [3]], (Prompt(ids=(1, 2)), Prompt(ids=(3,)))),
    ],
)
def test_prompts_in_all_their_forms(prompt: Any, prompts: tuple[Prompt, ...]) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_choices_of_all_prompts_together_are_bounded() -> None:
    assert completion(prompt=["x"] * 32, n=4, best_of=4).n == 4
    assert chat(n=128).n == 128
    with pytest.raises(ApiError, match="n times the number of prompts must be at most 128") as raised:
        completion(prompt=["x"] * 33, n=4)
    assert raised.value.param == "n"


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, -1),
        ({"logprobs": False}, -1),
        ({"logprobs": False, "top_logprobs": 0}, -1),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_of_a_chat(fields: dict[str, Any], asked: int) -> None:
    ask = chat_ask(**fields)
    assert ask.generation.sampling.logprobs == asked
    assert isinstance(ask.options, OpenAIOptions)
    assert ask.options.logprobs == asked


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"echo": True, "max_tokens": 0}, (-1, -1)),
        ({"logprobs": 0}, (0, -1)),
        ({"logprobs": 5, "echo": True}, (5, 5)),
        ({"logprobs": 5, "echo": True, "prompt_logprobs": 7}, (5, 7)),
        ({"prompt_logprobs": 0}, (-1, 0)),
    ],
)
def test_log_probabilities_of_a_prompt(fields: dict[str, Any], asked: tuple[int, int]) -> None:
    ask = completion_ask(**fields)
    sampling = ask.generation.sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == asked
    assert isinstance(ask.options, CompletionOptions)
    assert ask.options.echo == ask.generation.echo == bool(fields.get("echo"))


def test_errors_that_come_later_are_told_in_the_clients_names() -> None:
    assert chat(guided_regex="a", max_completion_tokens=4).names == Names(
        prompt="messages", max_tokens="max_completion_tokens", grammar="guided_regex"
    )
    assert completion().names == Names(prompt="prompt", max_tokens="max_tokens", grammar="")


VLLM_DEFAULTS = {
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "bad_words": [],
    "allowed_token_ids": None,
    "logprob_token_ids": None,
    "truncation_side": "left",
    "return_token_ids": False,
    "return_tokens_as_token_ids": None,
    "guided_grammar": None,
    "vllm_xargs": {},
    "priority": 0,
    "min_tokens": 0,
    "stop_token_ids": [],
    "stop": [],
    "ignore_eos": False,
}


def test_defaults_that_clients_of_vllm_send_change_nothing() -> None:
    plain, sent = chat(seed=1), chat(seed=1, echo=False, add_generation_prompt=True, **VLLM_DEFAULTS)
    assert sent == plain
    assert completion(seed=1, add_special_tokens=True, suffix="", **VLLM_DEFAULTS) == completion(seed=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"functions": [{"name": "f"}], "function_call": "none"},
    ],
)
def test_tools_that_are_turned_off_are_passed_over(fields: dict[str, Any]) -> None:
    assert chat(seed=1, **fields) == chat(seed=1)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 129}, "invalid_value", "n"),
        ({"n": 1.5}, "invalid_type", "n"),
        ({"n": 2, "best_of": 3}, "unsupported_parameter", "best_of"),
        ({"logprobs": 3}, "invalid_type", "logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"prompt_logprobs": 21}, "invalid_value", "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
        ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, "unsupported_parameter", "tools"),
        ({"tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
        ({"tools": [1], "function_call": "none"}, "unsupported_parameter", "tools"),
        ({"priority": 1, "service_tier": "default"}, "invalid_value", "priority"),
        ({"priority": -1, "service_tier": "flex"}, "invalid_value", "priority"),
        ({"priority": 1 << 63}, "invalid_value", "priority"),
        ({"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "invalid_value", "cache_salt"),
        ({"min_tokens": 5, "max_tokens": 4}, "invalid_value", "min_tokens"),
        ({"skip_special_tokens": False}, "unsupported_parameter", "skip_special_tokens"),
        ({"skip_special_tokens": 1}, "unsupported_parameter", "skip_special_tokens"),
        ({"length_penalty": True}, "unsupported_parameter", "length_penalty"),
        ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
        ({"bad_words": ["x"]}, "unsupported_parameter", "bad_words"),
        ({"echo": True}, "unsupported_parameter", "echo"),
        ({"add_generation_prompt": False}, "unsupported_parameter", "add_generation_prompt"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "unsupported_parameter",
            "stream_options.continuous_usage_stats",
        ),
        ({"request_id": "mine"}, "unknown_parameter", "request_id"),
        ({"logit_bias": {"00000000005": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"9999999999": 1}}, "invalid_value", "logit_bias"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_chat_is_refused(fields: dict[str, Any], code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as raised:
        chat(**fields)
    assert (raised.value.code, raised.value.param) == (code, param)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt[0]"),
        ({"prompt": [[1], "x"]}, "invalid_value", "prompt"),
        ({"prompt": [1, [1]]}, "invalid_value", "prompt"),
        ({"prompt": ["x"] * 129}, "invalid_value", "prompt"),
        ({"prompt": [-1]}, "invalid_value", "prompt[0]"),
        ({"prompt": [True]}, "invalid_type", "prompt[0]"),
        ({"logprobs": True}, "invalid_type", "logprobs"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "invalid_value", "max_tokens"),
        ({"n": 2, "echo": True, "logprobs": 1}, "invalid_value", "n"),
        ({"n": 2, "prompt_logprobs": 1}, "invalid_value", "n"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"add_special_tokens": False}, "unsupported_parameter", "add_special_tokens"),
        ({"messages": []}, "unknown_parameter", "messages"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_completion_is_refused(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as raised:
        completion(**fields)
    assert (raised.value.code, raised.value.param) == (code, param)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 2.5}, "temperature must be at most 2"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"stop": ["a"] * 5}, "stop must have at most 4 entries"),
        ({"stop": ""}, "stop must have at least 1 character"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0] must be at least 0"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5] must be between -100 and 100"),
        ({"max_tokens": "1"}, "parameter 'max_tokens': Expected `int | null`, got `str`"),
        (
            {"tools": [{}]},
            'tools are not supported: leave them out, or send a tool_choice of "none"',
        ),
    ],
)
def test_the_words_of_a_refusal(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as raised:
        chat(**fields)
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [(b"1e999", "invalid_value", "temperature"), (b"NaN", "invalid_json", None)],
)
def test_numbers_that_are_none(value: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as raised:
        COMPLETIONS.parse(b'{"model":"tiny","prompt":"hi","temperature":' + value + b"}")
    assert (raised.value.code, raised.value.param) == (code, param)


@pytest.mark.parametrize("body", [ChatBody, CompletionBody])
def test_the_schema_says_what_is_accepted(body: type[msgspec.Struct]) -> None:
    fields = msgspec.json.schema(body)["$defs"][body.__name__]["properties"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert fields["skip_special_tokens"] == {"enum": [None, True]}
    assert fields["length_penalty"]["enum"] == [None, 1.0]
    assert fields["model"] == {"type": "string", "minLength": 1, "maxLength": 256}


NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": NULL}}},
            "json_schema",
            '{"type":"null"}',
        ),
        ({"guided_json": NULL}, "json_schema", '{"type":"null"}'),
        ({"guided_json": '{"type": "null"}'}, "json_schema", '{"type": "null"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a","b"]'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", '["a"]'),
        ({"structured_outputs": {"json": NULL}}, "json_schema", '{"type":"null"}'),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
    ],
)
def test_grammars_by_all_their_names(fields: dict[str, Any], kind: str, text: str) -> None:
    grammar = chat(**fields).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (kind, text)


def test_a_format_of_text_asks_for_nothing() -> None:
    assert chat(response_format={"type": "text"}).grammar is None
