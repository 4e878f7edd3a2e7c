"""Several gateways at one limit: together they admit what it allows, nearly all of it, and seldom ask."""

import random
from dataclasses import dataclass

import pytest

from policy.bucket import Bucket
from policy.lease import PARTS_OF_CAP, Lease
from policy.lease_book import LeaseBook
from policy.reserve_all import reserve_all

GATEWAYS = 3
STEP_MS = 10
REQUEST_TOKENS = (200, 800)


@dataclass
class Outcome:
    admitted: list[tuple[int, int]]  # ms, tokens
    offered: int
    asked: int


def offer(tokens_per_minute: int, load: float, seconds: int, *, seed: int) -> Outcome:
    """Requests at `load` times the limit, at gateways chosen by chance; they use what they reserve."""
    rng = random.Random(seed)
    store = Bucket(tokens_per_minute, tokens_per_minute, 0)
    books: list[LeaseBook[str]] = [LeaseBook() for _ in range(GATEWAYS)]
    outcome = Outcome([], 0, 0)
    due = 0.0
    for now_ms in range(0, seconds * 1000, STEP_MS):
        due += load * tokens_per_minute * STEP_MS / 60_000
        while due > 0:
            amount = rng.randint(*REQUEST_TOKENS)
            due -= amount
            outcome.offered += 1
            lease = rng.choice(books).lease(
                "tokens", tokens_per_minute, now_ms, rate_per_minute=tokens_per_minute
            )
            if _reserve(lease, store, amount, now_ms, outcome):
                outcome.admitted.append((now_ms, amount))
                lease.settle(amount, amount, now_ms)
        for book in books:
            for amount in book.refill_begin(GATEWAYS, now_ms).values():
                granted = min(amount, max(0, store.available(now_ms)))
                assert store.take(granted, now_ms)
                book.leases["tokens"].granted(granted, store.available(now_ms), now_ms)
            book.refill_end()
            if settlement := book.settlement(now_ms):
                store.settle(dict(settlement.deltas)["tokens"], now_ms)
                book.settled(settlement.sequence)
    return outcome


def _reserve(lease: Lease, store: Bucket, amount: int, now_ms: int, outcome: Outcome) -> bool:
    if reserve_all([lease], [amount], now_ms):
        return True
    if lease.refused_ms(amount, now_ms):
        return False
    outcome.asked += 1
    wanted = min(max(amount, lease.resize(GATEWAYS, now_ms)), store.available(now_ms))
    if wanted < amount:
        wait_ms = store.wait_ms(amount, now_ms)
        assert wait_ms is not None
        lease.refused(amount, wait_ms, now_ms)
        return False
    assert store.take(wanted, now_ms)
    lease.granted(wanted, store.available(now_ms), now_ms)
    return reserve_all([lease], [amount], now_ms)


@pytest.mark.parametrize("tokens_per_minute", [60_000, 1_200_000])
def test_what_is_admitted_in_any_window_is_the_limit_and_the_leases_at_most(tokens_per_minute: int) -> None:
    """Given three times the limit, then at least 95 % of it is used."""
    seconds = 60
    outcome = offer(tokens_per_minute, 3.0, seconds, seed=11)
    leases = tokens_per_minute // PARTS_OF_CAP
    times = [at for at, _ in outcome.admitted]
    sums = [0]
    for _, amount in outcome.admitted:
        sums.append(sums[-1] + amount)
    for first in range(0, len(times), 37):
        for last in range(first, len(times), 53):
            window_ms = times[last] - times[first]
            refilled = window_ms * tokens_per_minute // 60_000
            assert sums[last + 1] - sums[first] <= tokens_per_minute + refilled + leases
    assert sums[-1] <= 2 * tokens_per_minute
    assert sums[-1] >= 0.95 * 2 * tokens_per_minute


def test_a_busy_tenant_within_its_limit_seldom_asks_the_store() -> None:
    outcome = offer(6_000_000, 0.5, 15, seed=12)
    assert len(outcome.admitted) == outcome.offered
    assert outcome.asked <= 0.01 * outcome.offered


def test_a_tenant_at_ten_times_its_limit_is_refused_mostly_without_asking() -> None:
    """Nine of ten requests are refused; the store is asked about as often as it admits one."""
    outcome = offer(600_000, 10.0, 30, seed=13)
    assert len(outcome.admitted) >= 1_800
    assert outcome.asked <= 1.1 * len(outcome.admitted)
