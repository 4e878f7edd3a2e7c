"""Values that published clients send are understood as they mean them."""

import json
from typing import Any

import pytest

from gateway.schema import CHAT, decode
from gateway.validation import Generation, chat_validate


def validated(**fields: Any) -> Generation:
    document = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    return chat_validate(decode(json.dumps(document).encode(), CHAT))


def test_seeds_differ_over_all_64_bits() -> None:
    seeds = [-(1 << 63), -1, 0, (1 << 63) - 1, 1 << 63]
    assert len({validated(seed=seed).sampling.seed for seed in seeds}) == 4  # -2**63 and 2**63: the same bits
    assert validated(seed=-1).sampling.seed == validated(seed=(1 << 64) - 1).sampling.seed == (1 << 64) - 1


@pytest.mark.parametrize("seed", [9223372036854776000, -9223372036854776000, 18446744073709552000])
def test_bounds_as_javascript_writes_them_are_seeds(seed: int) -> None:
    assert 0 <= validated(seed=seed).sampling.seed < 1 << 64


def test_top_p_of_0_is_greedy() -> None:
    sampling = validated(top_p=0, top_k=50).sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


def test_the_scale_tier_is_interactive_and_says_so() -> None:
    generation = validated(service_tier="scale")
    assert (generation.klass, generation.service_tier) == ("interactive", "default")


@pytest.mark.parametrize(
    "fields",
    [{"content": None, "refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}],
    ids=["message", "part"],
)
def test_a_refusal_is_what_the_assistant_said(fields: dict[str, Any]) -> None:
    messages = validated(messages=[{"role": "assistant", **fields}]).messages
    assert messages is not None
    assert messages[0].content == "no"


def test_what_shapes_sampling_reaches_the_worker() -> None:
    checked = validated(
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-0.5,
        frequency_penalty=2,
        min_tokens=3,
        logit_bias={"7": -100, "9": 2.5},
        stop_token_ids=[4, 5],
    )
    sampling = checked.sampling
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-0.5, 2)
    assert (sampling.min_tokens, sampling.logit_bias) == (3, [(7, -100), (9, 2.5)])
    assert checked.stop_token_ids == [4, 5]
    assert checked.grammar is None


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
    grammar = validated(**fields).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (kind, text)


def test_a_format_of_text_asks_for_nothing() -> None:
    assert validated(response_format={"type": "text"}).grammar is None
