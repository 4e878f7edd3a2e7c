"""Pricing: exact integer cost, one half-even rounding per event, and which tokens bill."""

from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.contracts import OUTCOMES, Price, UsageRecord
from billing.pricing import BillableTokens, Billed, billable_tokens, cost_micro_usd
from tests.billing.records import usage

tokens = st.integers(0, 10_000_000)
micro_usd_per_mtok = st.integers(0, 1_000_000_000)
prices = st.builds(
    Price,
    version=st.just(1),
    model=st.just("m"),
    prompt_micro_usd_per_mtok=micro_usd_per_mtok,
    cached_micro_usd_per_mtok=micro_usd_per_mtok,
    output_micro_usd_per_mtok=micro_usd_per_mtok,
)


records = st.builds(
    usage,
    prompt_tokens=st.integers(0, 9000),
    cached_tokens=st.integers(0, 9000),
    output_tokens=st.integers(0, 9000),
    outcome=st.sampled_from(OUTCOMES),
)


@given(prices, tokens, tokens, tokens)
def test_cost_is_the_decimal_amount_rounded_half_even(
    price: Price, prompt: int, cached: int, output: int
) -> None:
    exact = (
        Decimal(prompt) * price.prompt_micro_usd_per_mtok
        + Decimal(cached) * price.cached_micro_usd_per_mtok
        + Decimal(output) * price.output_micro_usd_per_mtok
    ) / Decimal(1_000_000)
    assert cost_micro_usd(price, prompt, cached, output) == int(exact.quantize(Decimal(1), ROUND_HALF_EVEN))


@pytest.mark.parametrize(
    ("half_units", "cost"),
    [(1, 0), (3, 2), (5, 2), (7, 4)],  # 0.5 → 0, 1.5 → 2, 2.5 → 2, 3.5 → 4
)
def test_ties_go_to_the_even_micro_dollar(half_units: int, cost: int) -> None:
    price = Price(1, "m", 500_000, 0, 0)
    assert cost_micro_usd(price, half_units, 0, 0) == cost


@given(prices, tokens, tokens)
def test_rounding_is_once_per_event_and_off_by_at_most_half(price: Price, prompt: int, output: int) -> None:
    whole = cost_micro_usd(price, prompt, 0, output)
    parts = cost_micro_usd(price, prompt, 0, 0) + cost_micro_usd(price, 0, 0, output)
    assert abs(whole - parts) <= 1
    exact = prompt * price.prompt_micro_usd_per_mtok + output * price.output_micro_usd_per_mtok
    assert abs(whole * 1_000_000 - exact) <= 500_000


@given(prices, tokens, tokens, tokens, st.integers(0, 1000))
def test_more_tokens_never_cost_less(price: Price, prompt: int, cached: int, output: int, more: int) -> None:
    assert cost_micro_usd(price, prompt, cached, output + more) >= cost_micro_usd(
        price, prompt, cached, output
    )


@given(records, st.booleans(), st.integers(0, 9000))
def test_no_token_bills_twice_and_none_that_was_not_counted(
    record: UsageRecord, prompt_billed: bool, output_billed: int
) -> None:
    billable = billable_tokens(record, Billed(prompt_billed, output_billed))
    assert min(billable) >= 0
    assert billable.prompt + billable.cached <= record.prompt_tokens
    assert billable.cached <= record.cached_tokens
    assert billable.output <= max(record.output_tokens - output_billed, 0)
    if prompt_billed:
        assert billable.prompt == billable.cached == 0


@given(records)
def test_nothing_bills_before_prefill(record: UsageRecord) -> None:
    idle = usage(prompt_tokens=0, output_tokens=record.output_tokens, outcome=record.outcome)
    assert billable_tokens(idle) == (0, 0, 0)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_our_failure_before_the_first_token_bills_nothing(outcome: str) -> None:
    record = usage(outcome=outcome, output_tokens=0)
    expected = (0, 0, 0) if outcome in ("replica_lost", "error") else (10, 0, 0)
    assert billable_tokens(record) == expected


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_produced_tokens_bill_whatever_the_outcome(outcome: str) -> None:
    record = usage(outcome=outcome, prompt_tokens=10, cached_tokens=4, output_tokens=5)
    assert billable_tokens(record) == BillableTokens(prompt=6, cached=4, output=5)
    assert billable_tokens(record, Billed(prompt=True, output=3)) == BillableTokens(
        prompt=0, cached=0, output=2
    )
