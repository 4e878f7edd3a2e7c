"""How many decisions a second the queue of one model version makes on one core.

`python -m bench.fairness.decisions [--starts 20000]`
10,000 requests wait, of 500 tenants, for 80 replicas; every start is followed by what a dispatcher tells the
queue about it: prompt computed, end, machine time of the flows there, the replica's next report, and a new
request in its place. The rule: at least 2,000 starts a second. Beside it, what refusing costs at ten times
the load. Exit status 1 when one of them is broken.
"""

import argparse
import heapq
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bench.report import bench_report, percentile
from policy.flow import INTERACTIVE, Flow
from policy.model_queue import ModelQueue
from policy.placement import Replica
from policy.queue_settings import QueueSettings
from policy.step_cost import StepCost
from policy.waiting import Placement, Waiting

RULE_PER_S = 2_000
REFUSE_RULE_MS = 1.0
COST = StepCost(base_ms=14, row_ms=0.132, token_ms=0.1, context_ms=30e-6)
ROW_LIMIT, MAX_ROWS, BLOCKS, BLOCK_TOKENS = 118, 500, 43_750, 16
TICK_MS, REPORT_MS = 250.0, 100.0


@dataclass
class Stage:
    """Replicas that compute a prompt in a tenth of a millisecond a token and hold a row for a while."""

    tenants: int = 500
    replicas: int = 80
    depth: int = 10_000
    seed: int = 1
    now_ms: float = 0.0
    submitted: int = 0
    refused: int = 0
    takes_us: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.queue = ModelQueue(QueueSettings(), 0.0, Random(self.seed))
        self.rows = [0] * self.replicas
        self.pending = [0] * self.replicas
        self.used = [0] * self.replicas
        self.work_us: list[dict[Flow, int]] = [{} for _ in range(self.replicas)]
        self.events: list[tuple[float, int, str, Placement]] = []
        self.number = 0
        self.queue.replicas_set([self.view(number) for number in range(self.replicas)])
        while self.queue.depth(INTERACTIVE) < self.depth:
            self.submit()

    def view(self, number: int) -> Replica:
        return Replica(
            key=f"replica {number:02}",
            rows=self.rows[number],
            max_rows=MAX_ROWS,
            max_tokens=8_192,
            pending_prefill_tokens=self.pending[number],
            free_blocks=BLOCKS - self.used[number],
            block_size=BLOCK_TOKENS,
            row_limit=ROW_LIMIT,
            cost=COST,
        )

    def submit(self, deadline_ms: float = 3_600_000) -> float:
        """Microseconds that the queue took for it."""
        self.submitted += 1
        waiting = Waiting(
            key=self.submitted,
            flow=Flow(f"tenant {self.rng.randrange(self.tenants)}", INTERACTIVE),
            weight=1.0,
            arrived_ms=self.now_ms,
            deadline_ms=self.now_ms + deadline_ms,
            prompt_tokens=self.rng.randint(16, 2_000),
            cached_tokens=0,
            expected_tokens=self.rng.randint(8, 600),
        )
        begun = time.perf_counter()
        self.refused += self.queue.submit(waiting, self.now_ms) is not None
        return (time.perf_counter() - begun) * 1e6

    def place(self) -> bool:
        """One decision; whether a request began."""
        begun = time.perf_counter()
        placement = self.queue.take(self.now_ms)
        self.takes_us.append((time.perf_counter() - begun) * 1e6)
        if placement is None:
            return False
        waiting, key = placement
        number = int(key[-2:])
        self.rows[number] += 1
        self.pending[number] += waiting.new_tokens
        self.used[number] += waiting.prompt_tokens // BLOCK_TOKENS + 1
        first_ms = self.now_ms + 0.2 * self.pending[number]
        self.at(first_ms, "prefilled", placement)
        self.at(first_ms + 30 * waiting.expected_tokens, "ended", placement)
        return True

    def at(self, when_ms: float, what: str, placement: Placement) -> None:
        self.number += 1
        heapq.heappush(self.events, (when_ms, self.number, what, placement))

    def happen(self) -> None:
        """The next thing that a replica reports."""
        self.now_ms, _, what, placement = heapq.heappop(self.events)
        waiting, key = placement
        number = int(key[-2:])
        work_us = self.work_us[number]
        if what == "prefilled":
            self.pending[number] -= waiting.new_tokens
            cost_us = round(1000 * COST.token_ms * waiting.new_tokens)
            self.queue.prefilled(waiting.key)
        else:
            self.rows[number] -= 1
            self.used[number] -= waiting.prompt_tokens // BLOCK_TOKENS + 1
            cost_us = round(300 * waiting.expected_tokens)
            self.queue.ended(waiting.key, self.now_ms)
        work_us[waiting.flow] = work_us.get(waiting.flow, 0) + cost_us
        self.queue.worked(key, waiting.flow, work_us[waiting.flow])
        self.queue.replica_update(self.view(number))

    def run(self, starts: int) -> float:
        """Starts a second of this core, everything that belongs to one included."""
        begun, done, ticked_ms = time.process_time(), 0, self.now_ms
        while done < starts:
            if self.place():
                done += 1
                self.submit()
                continue
            self.happen()
            if self.now_ms - ticked_ms >= TICK_MS:
                ticked_ms = self.now_ms
                self.queue.tick(self.now_ms)
                self.queue.expired(self.now_ms)
                self.queue.over_share()
        return done / (time.process_time() - begun)


def measure(starts: int = 20_000) -> list[dict[str, Any]]:
    stage = Stage()
    stage.run(2_000)  # the replicas fill
    stage.takes_us.clear()
    per_s = stage.run(starts)
    before = stage.refused
    refusals_us = [stage.submit(deadline_ms=200) for _ in range(10 * RULE_PER_S)]
    refused = (stage.refused - before) / len(refusals_us)
    return [
        {
            "what": "starts",
            "per second": per_s,
            "p50 us": percentile(stage.takes_us, 0.5),
            "p99 us": percentile(stage.takes_us, 0.99),
            "rule": "holds" if per_s >= RULE_PER_S else "BROKEN",
        },
        {
            "what": f"refusals ({refused:.0%} refused)",
            "per second": 1e6 / (sum(refusals_us) / len(refusals_us)),
            "p50 us": percentile(refusals_us, 0.5),
            "p99 us": percentile(refusals_us, 0.99),
            "rule": "holds" if percentile(refusals_us, 0.99) <= 1000 * REFUSE_RULE_MS else "BROKEN",
        },
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=20_000)
    rows = measure(parser.parse_args().starts)
    bench_report("fairness-decisions", "The queue of one model version, one core", rows)
    return 0 if all(row["rule"] == "holds" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
