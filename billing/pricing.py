"""What one usage event costs: which of its tokens bill, and their price. Pure integers, no I/O.

The rules are explained in docs/billing.md. Prices are micro-dollars per million tokens, so the products below
are in units of 1e-12 dollar; the event is rounded once, half to even, so that many small events have no bias.
"""

from typing import NamedTuple

from billing.contracts import Price, UsageRecord

_TOKENS_PER_PRICE_UNIT = 1_000_000
_OUR_FAILURES = ("replica_lost", "error")


class BillableTokens(NamedTuple):
    """Disjoint counts: `prompt` excludes the prompt tokens that were served from the cache."""

    prompt: int
    cached: int
    output: int


NOTHING = BillableTokens(0, 0, 0)


class Billed(NamedTuple):
    """What other attempts of the same request have billed."""

    prompt: bool
    output: int


NOTHING_BILLED = Billed(prompt=False, output=0)


def cost_micro_usd(price: Price, prompt: int, cached: int, output: int) -> int:
    """Cost of one event from the disjoint counts of `BillableTokens`, rounded half to even."""
    picodollars = (
        prompt * price.prompt_micro_usd_per_mtok
        + cached * price.cached_micro_usd_per_mtok
        + output * price.output_micro_usd_per_mtok
    )
    quotient, remainder = divmod(picodollars, _TOKENS_PER_PRICE_UNIT)
    twice = 2 * remainder
    if twice > _TOKENS_PER_PRICE_UNIT or (twice == _TOKENS_PER_PRICE_UNIT and quotient % 2 == 1):
        quotient += 1
    return quotient


def billable_tokens(record: UsageRecord, billed: Billed = NOTHING_BILLED) -> BillableTokens:
    """Which tokens of `record` bill, given what other attempts of the request did.

    In the end a request has billed its prompt once and the output of its longest attempt, in whatever order
    they were recorded.
    """
    if record.prompt_tokens == 0:
        return NOTHING
    if record.outcome in _OUR_FAILURES and record.output_tokens == 0:
        return NOTHING
    output = max(record.output_tokens - billed.output, 0)
    if billed.prompt:
        return BillableTokens(0, 0, output)
    # A worker that claims more cached than prompt tokens must not make the prompt negative.
    cached = min(record.cached_tokens, record.prompt_tokens)
    return BillableTokens(record.prompt_tokens - cached, cached, output)
