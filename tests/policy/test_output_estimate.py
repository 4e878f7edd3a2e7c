"""What is learned of outputs is their 75th percentile, follows changes, and stays within its bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.output_estimate import MIN_TOKENS, SAMPLES, OutputEstimates


def learned(outputs: list[int], max_tokens: int = 10**6) -> int:
    estimates = OutputEstimates()
    for tokens in outputs:
        estimates.observe("acme", "small", tokens)
    return estimates.expected("acme", "small", max_tokens)


def test_until_twenty_answers_have_ended_all_that_is_allowed_is_expected() -> None:
    assert learned([50] * (SAMPLES - 1), 4_000) == 4_000
    assert learned([50] * SAMPLES, 4_000) == 50


def test_it_says_whether_it_learned_anything() -> None:
    estimates = OutputEstimates()
    for number in range(SAMPLES):
        assert not estimates.is_known("acme", "small"), number
        estimates.observe("acme", "small", 50)
    assert estimates.is_known("acme", "small")
    assert not estimates.is_known("acme", "large")


def test_the_first_estimate_is_the_percentile_of_what_was_seen() -> None:
    assert learned(list(range(100, 100 + SAMPLES))) == 114


def test_three_of_four_answers_are_no_longer() -> None:
    rng = random.Random(7)
    outputs = [round(rng.lognormvariate(5.5, 0.8)) for _ in range(4_000)]
    estimates = OutputEstimates()
    within = 0
    for at, tokens in enumerate(outputs):
        within += at >= 1_000 and tokens <= estimates.expected("acme", "small", 10**6)
        estimates.observe("acme", "small", tokens)
    assert within / 3_000 == pytest.approx(0.75, abs=0.02)


def test_it_follows_outputs_that_become_longer_or_shorter() -> None:
    assert 380 <= learned([100] * 50 + [400] * 100) <= 420
    assert 95 <= learned([400] * 50 + [100] * 200) <= 105


@given(st.lists(st.integers(0, 5_000), max_size=60), st.integers(1, 5_000))
def test_it_is_between_sixteen_and_what_is_allowed(outputs: list[int], max_tokens: int) -> None:
    expected = learned(outputs, max_tokens)
    assert min(MIN_TOKENS, max_tokens) <= expected <= max_tokens


def test_tenants_and_models_are_learned_apart() -> None:
    estimates = OutputEstimates()
    for _ in range(SAMPLES):
        estimates.observe("acme", "small", 100)
    assert estimates.expected("acme", "large", 900) == 900
    assert estimates.expected("other", "small", 900) == 900
    assert estimates.expected("acme", "small", 900) == 100


def test_those_that_ended_least_recently_are_forgotten() -> None:
    estimates = OutputEstimates(max_entries=2)
    for tenant in ["a"] * SAMPLES + ["b"] * SAMPLES + ["a", "c"]:
        estimates.observe(tenant, "small", 100)
    assert len(estimates) == 2
    assert estimates.expected("a", "small", 900) < 900
    assert estimates.expected("b", "small", 900) == 900
