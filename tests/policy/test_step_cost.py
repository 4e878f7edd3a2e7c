"""Costs are found when the data tell them, never negative, and a chunk is as large as its time allows."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.least_squares import Moments, solve_positive
from policy.pacing import StepPacer
from policy.step_cost import StepCost, StepModel, chunk_pairs

token_costs = st.just(0.0) | st.floats(1e-6, 10)
pair_costs = st.just(0.0) | st.floats(1e-9, 0.1)


def test_costs_are_found_when_loads_vary() -> None:
    truth = StepCost(13, 0.65, 0.35, 0.0018, 0.00065)
    model = StepModel(StepCost(1, 32, 128, 16_384, 131_072), StepCost(25, 0.2, 1.5, 0.0004, 0.0004))
    randomness = random.Random(7)
    for _ in range(400):
        rows, tokens = randomness.randint(0, 32), randomness.choice([0, 16, 50, 120])
        context = rows * randomness.randint(50, 1500)
        pairs = chunk_pairs(tokens, randomness.randint(0, 1500))
        took = truth.predict_ms(rows, tokens, context, pairs) * randomness.gauss(1, 0.01)
        model.observe(rows, tokens, context, pairs, took)
    assert model.cost.base_ms == pytest.approx(truth.base_ms, rel=0.1)
    assert model.cost.row_ms == pytest.approx(truth.row_ms, rel=0.15)
    assert model.cost.token_ms == pytest.approx(truth.token_ms, rel=0.1)
    assert model.cost.context_ms == pytest.approx(truth.context_ms, rel=0.1)
    assert model.cost.pair_ms == pytest.approx(truth.pair_ms, rel=0.1)


steps = st.tuples(
    st.integers(0, 500),
    st.integers(0, 2048),
    st.integers(0, 10**6),
    st.integers(0, 8192),
    st.floats(0, 10_000),
)


@given(st.lists(steps, min_size=1, max_size=60), st.floats(1, 1000))
def test_whatever_was_measured_costs_are_finite_and_not_negative(
    measured: list[tuple[int, int, int, int, float]], target_ms: float
) -> None:
    pacer = StepPacer(target_ms)
    for rows, tokens, context, start, took in measured:
        pacer.observe(rows, tokens, context, took, chunk_pairs(tokens, start))
        cost = pacer.cost
        for value in (cost.base_ms, cost.row_ms, cost.token_ms, cost.context_ms, cost.pair_ms):
            assert 0 <= value < 1e6
        assert 0.5 * target_ms <= pacer.allowed_ms() <= target_ms
        assert pacer.row_limit(1000) >= 1


@given(token_costs, pair_costs, st.floats(-10, 1000), st.integers(0, 100_000))
def test_a_chunk_is_the_largest_that_fits(
    token_ms: float, pair_ms: float, left_ms: float, start: int
) -> None:
    cost, most = StepCost(5, 1, token_ms, 0, pair_ms), 512
    tokens = cost.chunk_tokens(left_ms, start, most)
    assert 0 <= tokens <= most
    assert tokens == 0 or cost.chunk_ms(tokens, start) <= left_ms * (1 + 1e-9)
    assert tokens == most or cost.chunk_ms(tokens + 1, start) >= left_ms * (1 - 1e-9)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 300))
def test_pairs_of_a_prompt_do_not_depend_on_how_it_is_cut(start: int, first: int, second: int) -> None:
    whole = chunk_pairs(first + second, start)
    assert whole == chunk_pairs(first, start) + chunk_pairs(second, start + first)
    assert chunk_pairs(1, start) == start + 1


@given(st.lists(st.lists(st.floats(-1, 1), min_size=4, max_size=4), min_size=4, max_size=8))
def test_a_system_is_solved(factors: list[list[float]]) -> None:
    matrix = [
        [sum(f[r] * f[c] for f in factors) + (1.0 if r == c else 0.0) for c in range(4)] for r in range(4)
    ]
    right = [1.0, -2.0, 3.0, 0.5]
    solved = solve_positive([matrix[r][: r + 1] for r in range(4)], list(right))
    for row, value in zip(matrix, right, strict=True):
        assert sum(a * b for a, b in zip(row, solved, strict=True)) == pytest.approx(value, abs=1e-9)


def test_a_coefficient_that_would_be_negative_is_zero_and_the_others_fit_without_it() -> None:
    moments = Moments(2, forgetting=1.0)
    for x in range(10):
        moments.add([1.0, x], 20.0 - x)
    base, slope = moments.solve([0.0, 0.0], strength=1e-9)
    assert slope == 0
    assert base == pytest.approx(20 - 4.5)


def test_what_the_data_leave_open_is_taken_from_the_pull() -> None:
    moments = Moments(3, forgetting=0.98)
    for _ in range(1000):
        moments.add([1.0, 2.0, 0.0], 10.0)
    fit = moments.solve([2.0, 4.0, 7.0], strength=0.3)
    assert fit == pytest.approx([2, 4, 7])


def test_where_every_coefficient_would_be_negative_all_are_zero() -> None:
    moments = Moments(2, forgetting=1.0)
    for features in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        moments.add(features, -10.0)
    assert moments.solve([0.0, 0.0], 0.001) == [0.0, 0.0]
