"""The pure objects alone: what a decision over five leases takes, and its settlement.

The store is a dictionary of buckets in this process; it is asked ahead of need, outside of what is timed.
"""

import random
from typing import Any

from bench.limits.timing import Durations, Stopwatch
from policy.bucket import Bucket
from policy.lease import Lease
from policy.lease_book import LeaseBook
from policy.output_estimate import OutputEstimates
from policy.reserve_all import reserve_all

LIMITS = {  # of a large tenant: units a minute; the last three have no rate
    "tokens_per_minute": 60_000_000,
    "requests_per_minute": 60_000,
    "concurrent_requests": 20_000,
    "spend_per_day": 10**13,
    "spend_per_month": 10**14,
}
RATED = ("tokens_per_minute", "requests_per_minute")
GATEWAYS = 4
OPEN_REQUESTS = 200
DECISION_BOUND_US = 50.0


class Stage:
    """One tenant at 1,000 requests a second on a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.book: LeaseBook[str] = LeaseBook()
        self.store = {name: Bucket(cap, cap if name in RATED else 0, 0) for name, cap in LIMITS.items()}
        self.leases: list[Lease] = [self.book.lease(name, cap, 0) for name, cap in LIMITS.items()]
        self.estimates = OutputEstimates()
        self.from_store = 0

    def ask_store(self, needs: list[int]) -> None:
        for (name, bucket), lease, need in zip(self.store.items(), self.leases, needs, strict=True):
            amount = max(need, lease.resize(GATEWAYS, self.now_ms))
            assert bucket.take(amount, self.now_ms), f"the bench used up {name}"
            lease.granted(amount, bucket.available(self.now_ms), self.now_ms)
        self.from_store += 1

    def keep_warm(self) -> None:
        for name, amount in self.book.refill_begin(GATEWAYS, self.now_ms).items():
            assert self.store[name].take(amount, self.now_ms), f"the bench used up {name}"
            self.book.leases[name].granted(amount, self.store[name].available(self.now_ms), self.now_ms)
        self.book.refill_end()
        if settlement := self.book.settlement(self.now_ms):
            for name, delta in settlement.deltas:
                self.store[name].settle(delta, self.now_ms)
            self.book.settled(settlement.sequence)


def policies_measure(calls: int) -> list[dict[str, Any]]:
    rng = random.Random(5)
    stage = Stage()
    decision = Durations("policy: reserve of 5 limits, warm lease", DECISION_BOUND_US)
    settlement = Durations("policy: settle of 5 limits", DECISION_BOUND_US)
    running: list[list[int]] = []
    for call in range(calls):
        stage.now_ms = call
        prompt_tokens, output_tokens = rng.randint(50, 800), rng.randint(16, 400)
        watch = Stopwatch()
        expected = prompt_tokens + stage.estimates.expected("tenant", "model", 1024)
        amounts = [expected, 1, 1, expected * 3, expected * 3]
        is_taken = reserve_all(stage.leases, amounts, stage.now_ms)
        took = watch.read()
        if is_taken:
            decision.add(*took)
        else:
            stage.ask_store(amounts)
            assert reserve_all(stage.leases, amounts, stage.now_ms)
        running.append(amounts)
        if len(running) > OPEN_REQUESTS:
            ended = running.pop(0)
            used = [prompt_tokens + output_tokens, 1, 0, ended[3] // 2, ended[4] // 2]
            watch = Stopwatch()
            for lease, reserved, actual in zip(stage.leases, ended, used, strict=True):
                lease.settle(reserved, actual, stage.now_ms)
            stage.estimates.observe("tenant", "model", output_tokens)
            settlement.add(*watch.read())
        stage.keep_warm()
    note = f"{100 * stage.from_store / calls:.2f}% asked the store"
    return [decision.row(note), settlement.row()]
