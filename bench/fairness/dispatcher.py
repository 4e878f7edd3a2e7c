"""How many requests a second the dispatcher decides, with 10,000 waiting from 500 tenants.

`python -m bench.fairness.dispatcher [--decisions 20000]`
One decision is a request's whole way through the dispatcher object: its Submit, a worker's Report that ends
another row, and the placing of what is next. The rules: at least 2,000 a second on one core, and the 99th
percentile of a refusal at most 1 ms. Exit status 1 when one is broken.
"""

import argparse
import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bench.report import bench_report, percentile
from dispatch.dispatcher import Dispatcher
from dispatch.limits import Limits
from gpuworker.wire.messages import (
    HEARTBEAT_MS,
    PROTOCOL_VERSION,
    AnyMessage,
    Capacity,
    Ended,
    FlowWork,
    Hello,
    Report,
    RowKey,
    Run,
    Sampling,
    Submit,
    pack_ids,
)
from policy.queue_settings import QueueSettings

QUEUED, TENANTS = 10_000, 500
LEAST_PER_S, MOST_REFUSAL_MS = 2_000.0, 1.0
REFUSALS = 2_000
WARM_UP = 2_000  # decisions, until the replicas hold what they are to hold with so many waiting
NOISY = "noisy"  # has its part of a full queue, while others may still add to theirs
DIGEST, GATEWAY = "weights", "gateway"
ROWS, BLOCKS, BLOCK_TOKENS = 64, 8_192, 16
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 300
FLOWS_PER_REPORT = 8
COST = [14.0, 0.132, 0.1, 30e-6, 0.0]  # milliseconds: one of the large replicas that the design is for
STEP_MS = 30.0


@dataclass
class Peer:
    """Keeps which rows it was sent, and counts refusals."""

    rows: deque[RowKey] = field(default_factory=deque)
    fresh: list[RowKey] = field(default_factory=list)  # not reported as prefilled
    refusals: int = 0

    def send(self, message: AnyMessage) -> bool:
        match message:
            case Run(gateway=gateway, submit=submit):
                row = RowKey(gateway, submit.sid)
                self.rows.append(row)
                self.fresh.append(row)
            case Ended():
                self.refusals += 1
        return True

    def abort(self, cause: str) -> None:
        raise RuntimeError(f"the dispatcher gave a peer up: {cause}")


class Bench:
    def __init__(self, workers: int, queue: QueueSettings) -> None:
        self.now_ms = 0.0
        self._rng = Random(7)
        self.dispatcher = Dispatcher(Limits(queue=queue), b"prefixes", self.now_ms, Random(1))
        self.gateway = Peer()
        self.workers = {f"worker-{number}": Peer() for number in range(workers)}
        self._turns: Iterator[str] = itertools.cycle(self.workers)
        self._sids = itertools.count(1)
        self._seq = itertools.count(1)
        self._work_us = dict.fromkeys(self.workers, 0)
        self._prompt = pack_ids(list(range(PROMPT_TOKENS)))
        self.dispatcher.gateway_joined(_hello("gateway", GATEWAY), self.gateway, self.now_ms)
        for name, worker in self.workers.items():
            self.dispatcher.worker_joined(_hello("worker", name), worker, self.now_ms)
            self.report(name, ends=False)

    def submit(self, tenant: str = "") -> None:
        """Of any tenant."""
        submit = Submit(
            sid=next(self._sids),
            request_id="request",
            attempt=1,
            tenant=tenant or f"tenant-{self._rng.randrange(TENANTS)}",
            model="model",
            digest=DIGEST,
            klass="interactive",
            prompt=self._prompt,
            max_tokens=OUTPUT_TOKENS,
            sampling=Sampling(),
            expected_tokens=OUTPUT_TOKENS // 2,
            deadline_ms=3_600_000,
        )
        self.dispatcher.submit(GATEWAY, submit, self.now_ms)

    def report(self, name: str, *, ends: bool) -> None:
        """Everything it was sent is prefilled. `ends`: its oldest row is over."""
        worker = self.workers[name]
        ended = [worker.rows.popleft()] if ends else []
        prefilled, worker.fresh = worker.fresh, []
        self._work_us[name] += int(STEP_MS * 1_000 / FLOWS_PER_REPORT)
        report = Report(
            seq=next(self._seq),
            running=len(worker.rows),
            waiting=0,
            pending_prefill_tokens=0,
            free_blocks=BLOCKS - len(worker.rows) * (PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_TOKENS,
            step=1,
            step_ms=STEP_MS,
            batch_rows=len(worker.rows),
            tokens_per_s=0.0,
            preemptions=0,
            prefilled=prefilled,
            ended=ended,
            runs=1 << 30,
            cost=COST,
            row_limit=ROWS,
            work=[
                FlowWork(f"tenant-{self._rng.randrange(TENANTS)}", "interactive", self._work_us[name])
                for _ in range(FLOWS_PER_REPORT)
            ],
        )
        self.dispatcher.report(name, report, self.now_ms)

    def tick(self) -> None:
        for name in self.workers:
            self.dispatcher.worker_heard(name, self.now_ms)
        self.dispatcher.gateway_heard(GATEWAY, self.now_ms)
        self.dispatcher.tick(self.now_ms)

    def fill(self) -> None:
        """Every replica is full, and `QUEUED` wait."""
        while (missing := QUEUED - self.queued) > 0:
            for _ in range(missing):
                self.submit()
            for name, worker in self.workers.items():
                while worker.fresh:
                    self.report(name, ends=False)

    @property
    def queued(self) -> int:
        return sum(view.depth for view in self.dispatcher.fleet_state(self.now_ms, 0).queues)

    def decide(self, decisions: int) -> tuple[list[float], list[float], list[float]]:
        """Milliseconds of each submit, each report with what it places, and each tick."""
        submits, reports, ticks = [], [], []
        ticked_ms = self.now_ms
        for _ in range(decisions):
            self.now_ms += 1_000 / LEAST_PER_S
            begun = time.perf_counter()
            self.submit()
            submitted = time.perf_counter()
            self.report(next(self._turns), ends=True)
            reported = time.perf_counter()
            submits.append(1_000 * (submitted - begun))
            reports.append(1_000 * (reported - submitted))
            if self.now_ms - ticked_ms >= HEARTBEAT_MS:
                ticked_ms = self.now_ms
                self.tick()
                ticks.append(1_000 * (time.perf_counter() - reported))
        return submits, reports, ticks


def _hello(role: str, name: str) -> Hello:
    is_worker = role == "worker"
    capacity = Capacity(blocks=BLOCKS, block_size=BLOCK_TOKENS, max_tokens=32_768, max_rows=ROWS)
    return Hello(
        version=PROTOCOL_VERSION,
        role=role,
        id=name,
        incarnation=name,
        secret="bench",
        address=f"unix:/{name}" if is_worker else "",
        model="model" if is_worker else "",
        digest=DIGEST if is_worker else "",
        capacity=capacity if is_worker else None,
    )


def _row(what: str, values_ms: list[float]) -> dict[str, Any]:
    return {
        "what": what,
        "count": len(values_ms),
        "per second": 1_000 * len(values_ms) / sum(values_ms),
        "p50 µs": 1_000 * percentile(values_ms, 0.5),
        "p99 µs": 1_000 * percentile(values_ms, 0.99),
        "max µs": 1_000 * max(values_ms),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fairness.dispatcher", description=__doc__)
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=16)
    arguments = parser.parse_args()
    bench = Bench(arguments.workers, QueueSettings())
    bench.fill()
    bench.decide(WARM_UP)
    queued, begun = bench.queued, time.process_time()
    submits, reports, ticks = bench.decide(arguments.decisions)
    per_s = arguments.decisions / (time.process_time() - begun)  # other processes may use the core too
    if bench.gateway.refusals or min(queued, bench.queued) < 0.99 * QUEUED:
        raise SystemExit(
            f"not what was to be measured: {bench.queued} wait, {bench.gateway.refusals} refused"
        )
    full = Bench(arguments.workers, QueueSettings(queue_most=QUEUED))
    full.fill()
    while not full.gateway.refusals:
        full.submit(NOISY)
    refusals, full.gateway.refusals = [], 0
    for _ in range(REFUSALS):
        full.now_ms += 0.1
        begun = time.perf_counter()
        full.submit(NOISY)
        refusals.append(1_000 * (time.perf_counter() - begun))
    if full.gateway.refusals != REFUSALS:
        raise SystemExit(f"{full.gateway.refusals} of {REFUSALS} were refused by a full queue")
    rows = [_row("submit", submits), _row("report + place", reports), _row("tick", ticks)]
    bench_report(
        "fairness-dispatcher",
        f"dispatcher: {QUEUED:,} waiting from {TENANTS} tenants, {arguments.workers} workers, one core",
        [*rows, _row("refusal, queue full", refusals)],
        decisions_per_s=round(per_s),
        workers=arguments.workers,
    )
    holds = per_s >= LEAST_PER_S and percentile(refusals, 0.99) <= MOST_REFUSAL_MS
    print(f"{per_s:,.0f} decisions a second, {LEAST_PER_S:,.0f} asked for: {'holds' if holds else 'BROKEN'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
