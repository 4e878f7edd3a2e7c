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
