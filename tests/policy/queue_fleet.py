"""A small fleet behind a ModelQueue: replicas that share their machine time as workers do, and keep books."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from policy.flow import BATCH, INTERACTIVE, Flow
from policy.model_queue import ModelQueue
from policy.placement import Replica
from policy.queue_settings import QueueSettings
from policy.step_cost import StepCost
from policy.waiting import LevelChange, Refusal, Waiting

COST = StepCost(base_ms=10, row_ms=1.0, token_ms=0.1, context_ms=0.0)
OUTPUT_TOKEN_MS = 2.0  # machine time; the estimate thinks 1 ms and a part of the base
QUANTUM_MS = 50.0
BLOCK_TOKENS = 16
BATCH_PART = 0.1  # that batch is given in a step whatever the others want


def waiting_make(
    key: object = 1,
    tenant: str = "a",
    klass: str = INTERACTIVE,
    *,
    weight: float = 1.0,
    at_ms: float = 0.0,
    deadline_ms: float = 10_000,
    prompt: int = 100,
    cached: int = 0,
    output: int = 50,
    choices: int = 1,
    is_retry: bool | None = None,
) -> Waiting:
    return Waiting(
        key=key,
        flow=Flow(tenant, klass),
        weight=weight,
        arrived_ms=at_ms,
        deadline_ms=at_ms + deadline_ms,
        prompt_tokens=prompt,
        cached_tokens=cached,
        expected_tokens=output,
        choices=choices,
        is_retry=is_retry,
    )


def replica_make(
    key: str = "r0",
    *,
    rows: int = 0,
    max_rows: int = 40,
    row_limit: int = 20,
    max_tokens: int = 8192,
    pending: int = 0,
    free: int = 10_000,
    cost: StepCost | None = COST,
    takes_more: bool = True,
    is_for_long_prompts: bool = False,
) -> Replica:
    return Replica(
        key=key,
        rows=rows,
        max_rows=max_rows,
        max_tokens=max_tokens,
        pending_prefill_tokens=pending,
        free_blocks=free,
        block_size=BLOCK_TOKENS,
        is_for_long_prompts=is_for_long_prompts,
        row_limit=row_limit,
        cost=cost,
        takes_more=takes_more,
    )


@dataclass(eq=False)
class Row:
    waiting: Waiting
    prompt_ms: float
    output_ms: float

    @property
    def left_ms(self) -> float:
        return self.prompt_ms + self.output_ms


@dataclass
class Host:
    key: str
    rows: list[Row] = field(default_factory=list)
    total_us: dict[Flow, int] = field(default_factory=lambda: defaultdict(int))

    def serve(self, rows: list[Row], budget_ms: float) -> float:
        """Prompts in this order, then all outputs alike; what is left of the time."""
        for row in rows:
            spent_ms = min(budget_ms, row.prompt_ms)
            row.prompt_ms -= spent_ms
            budget_ms -= self._gave(row, spent_ms)
        decoding = sorted((row for row in rows if not row.prompt_ms), key=lambda row: row.output_ms)
        for position, row in enumerate(decoding):
            spent_ms = min(budget_ms / (len(decoding) - position), row.output_ms)
            row.output_ms -= spent_ms
            budget_ms -= self._gave(row, spent_ms)
        return budget_ms

    def _gave(self, row: Row, spent_ms: float) -> float:
        self.total_us[row.waiting.flow] += round(1000 * spent_ms)
        return spent_ms


class Fleet:
    """`reports`: whether replicas tell their costs and the machine time they gave."""

    def __init__(
        self,
        replicas: int = 2,
        *,
        reports: bool = True,
        row_limit: int = 20,
        settings: QueueSettings | None = None,
    ) -> None:
        self.now_ms = 0.0
        self.queue = ModelQueue(settings or QueueSettings(), 0.0, Random(1))
        self.hosts = {f"r{number}": Host(f"r{number}") for number in range(replicas)}
        self.reports, self.row_limit = reports, row_limit
        self.started: dict[object, float] = {}  # key -> when
        self.done: dict[object, float] = {}
        self.expired: list[Waiting] = []
        self.changes: list[LevelChange] = []
        self.served_ms: dict[Flow, float] = defaultdict(float)
        self.busy_ms = 0.0
        self.number = 0
        self._rows: dict[object, Row] = {}
        self._report()

    def submit(self, tenant: str, klass: str = INTERACTIVE, **fields: object) -> tuple[int, Refusal | None]:
        self.number += 1
        waiting = waiting_make(self.number, tenant, klass, at_ms=self.now_ms, **fields)  # type: ignore[arg-type]
        refusal = self.queue.submit(waiting, self.now_ms)
        self.place()
        return self.number, refusal

    def place(self) -> None:
        while placement := self.queue.take(self.now_ms):
            waiting = placement.waiting
            assert waiting.deadline_ms >= self.now_ms
            row = Row(waiting, COST.token_ms * waiting.new_tokens, OUTPUT_TOKEN_MS * waiting.expected_tokens)
            self.hosts[placement.replica].rows.append(row)
            self.started[waiting.key] = self.now_ms
            self._rows[waiting.key] = row

    def advance(self, ms: float) -> None:
        for _ in range(round(ms / QUANTUM_MS)):
            self.now_ms += QUANTUM_MS
            for host in self.hosts.values():
                self._step(host)
            self._report()
            if self.now_ms % 250 == 0:
                self.changes += self.queue.tick(self.now_ms)
            self.expired += self.queue.expired(self.now_ms)
            self.place()

    def _step(self, host: Host) -> None:
        """Rows within their share first, batch last but for its part; least served flows first."""
        over = self.queue.over_share()
        batch = [row for row in host.rows if row.waiting.flow.klass == BATCH]
        others = [row for row in host.rows if row.waiting.flow.klass != BATCH]
        others.sort(key=lambda row: (row.waiting.flow in over, host.total_us[row.waiting.flow]))
        kept_ms = BATCH_PART * QUANTUM_MS if batch else 0.0
        kept_ms = host.serve(batch, kept_ms)
        left_ms = host.serve(others, QUANTUM_MS - BATCH_PART * QUANTUM_MS * bool(batch) + kept_ms)
        self.busy_ms += QUANTUM_MS - host.serve(batch, left_ms)

    def _report(self) -> None:
        for host in self.hosts.values():
            if self.reports:
                for flow, total_us in host.total_us.items():
                    self.queue.worked(host.key, flow, total_us)
            for row in list(host.rows):
                if row.prompt_ms <= 1e-9:
                    self.queue.prefilled(row.waiting.key)
                if row.left_ms <= 1e-9:
                    host.rows.remove(row)
                    self.queue.ended(row.waiting.key, self.now_ms)
                    self.done[row.waiting.key] = self.now_ms
            self.queue.replica_update(self.view(host))
        self.served_ms = defaultdict(float)
        for host in self.hosts.values():
            for flow, total_us in host.total_us.items():
                self.served_ms[flow] += total_us / 1000

    def view(self, host: Host) -> Replica:
        pending = round(sum(row.prompt_ms for row in host.rows) / COST.token_ms)
        used = sum(row.waiting.prompt_tokens // BLOCK_TOKENS + 1 for row in host.rows)
        return replica_make(
            host.key,
            rows=sum(row.waiting.choices for row in host.rows),
            row_limit=self.row_limit,
            pending=pending,
            free=10_000 - used,
            cost=COST if self.reports else None,
        )

    def service_ms(self, tenants: Iterable[str], klass: str = INTERACTIVE) -> dict[str, float]:
        return {tenant: self.served_ms[Flow(tenant, klass)] for tenant in tenants}
