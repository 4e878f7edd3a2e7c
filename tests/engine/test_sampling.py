"""Ranges of sampling parameters, each refused by name, and the seeds of a request's choices."""

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpuworker.engine.sampling import choice_seed, sampling_problem
from gpuworker.wire.messages import Sampling

VOCABULARY = 100
INF, NAN = math.inf, math.nan

INSIDE: dict[str, list[Any]] = {
    "temperature": [0.0, 1e-9, 1.0, 2.0, 1e300],
    "top_p": [1e-9, 0.5, 1.0],
    "top_k": [0, 1, 10**30],
    "min_p": [0.0, 0.3, 1.0],
    "repetition_penalty": [1e-3, 1.0, 10.0],
    "presence_penalty": [-2.0, 0.0, 2.0],
    "frequency_penalty": [-2.0, 0.0, 2.0],
    "logit_bias": [[], [(0, -100.0), (99, 100.0)]],
    "min_tokens": [0, 1, 10**30],
    "logprobs": [-1, 0, 20],
    "prompt_logprobs": [-1, 0, 20],
    "seed": [0, -1, 2**64 - 1],
}
OUTSIDE: dict[str, list[Any]] = {
    "temperature": [-1e-9, INF, NAN],
    "top_p": [0.0, -0.1, 1.0000001, INF, NAN],
    "top_k": [-1, -(10**30)],
    "min_p": [-1e-9, 1.0000001, INF, NAN],
    "repetition_penalty": [0.0, -1.0, 10.1, INF, NAN],
    "presence_penalty": [-2.1, 2.1, INF, NAN],
    "frequency_penalty": [-2.1, 2.1, -INF, NAN],
    "logit_bias": [
        [(-1, 0.0)],
        [(100, 0.0)],
        [(5, 100.5)],
        [(5, NAN)],
        [(5, -INF)],
        [(5, 1.0), (5, 2.0)],
        [(token, 0.0) for token in range(1025)],
    ],
    "min_tokens": [-1],
    "logprobs": [-2, 21],
    "prompt_logprobs": [-2, 21],
}


def pairs(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), pairs(INSIDE))
def test_a_value_inside_its_range_is_taken(name: str, value: Any) -> None:
    assert sampling_problem(Sampling(**{name: value}), VOCABULARY) == ""


@pytest.mark.parametrize(("name", "value"), pairs(OUTSIDE))
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: Any) -> None:
    assert sampling_problem(Sampling(**{name: value}), VOCABULARY).startswith(name)


def test_without_a_vocabulary_ids_of_any_model_are_taken() -> None:
    assert sampling_problem(Sampling(logit_bias=[(10**6, 1.0)])) == ""
    assert sampling_problem(Sampling(logit_bias=[(-1, 1.0)])) != ""


@given(seed=st.integers(-(2**63), 2**64 - 1), choice=st.integers(0, 127))
def test_a_choice_seed_has_64_bits_and_choice_0_keeps_the_requests(seed: int, choice: int) -> None:
    assert 0 <= choice_seed(seed, choice) < 2**64
    assert choice_seed(seed, 0) == seed % 2**64


@given(seed=st.integers(0, 2**64 - 1))
def test_choices_of_neighbouring_seeds_all_differ(seed: int) -> None:
    seeds = [choice_seed(seed + step, choice) for step in range(4) for choice in range(16)]
    assert len(set(seeds)) == len(seeds)


def test_choice_seeds_do_not_change_between_releases() -> None:
    assert [choice_seed(42, choice) for choice in range(3)] == [
        42,
        17532488217563185893,
        8238092213399105094,
    ]
