"""What the dispatcher knows of each worker and gateway: last report, own placements since, liveness."""

from collections import deque
from dataclasses import dataclass, field, fields
from typing import Protocol

from dispatch.prefixes import PrefixIndex
from dispatch.requests import Request
from gpuworker.wire.messages import (
    DEAD_MS,
    HEARTBEAT_MS,
    SUSPECT_MS,
    AnyMessage,
    Capacity,
    GatewayView,
    Hello,
    Report,
    RowKey,
    WorkerUp,
    WorkerView,
)
from policy.placement import PrefillReplica, Replica, blocks_needed
from policy.step_cost import StepCost

ROLES = ("both", "prefill", "decode")
PREFILL = "prefill"  # computes prompts for the others and runs no rows
LONG_PROMPT = "long_prompt"
_COSTS = len(fields(StepCost))
REFUSAL_PAUSE_MS = 1_000  # a replica that said it is full looks idle: others are asked meanwhile


class Peer(Protocol):
    """The other end of a connection."""

    def send(self, message: AnyMessage) -> bool:
        """False when the connection is at its end."""

    def abort(self, cause: str) -> None: ...


class Absent:
    """Stands in for a gateway that was heard of but has not connected to this dispatcher."""

    def send(self, message: AnyMessage) -> bool:
        return False

    def abort(self, cause: str) -> None:
        return


@dataclass(slots=True, eq=False)
class Worker:
    """`placed` holds every row sent there that has not ended; the counters are running sums over it."""

    hello: Hello
    capacity: Capacity
    peer: Peer
    heard_ms: float
    prefixes: PrefixIndex
    reported_ms: float = 0.0  # when it sent its last report
    paused_until_ms: float = 0.0  # it said that it is full
    report: Report | None = None
    cost: StepCost | None = None  # of its steps, as it measured it
    is_doubted: bool = False  # a gateway lost it: it gets nothing before it is heard of again
    draining: bool = False  # it said that it stops; it gets nothing more
    takes_more: bool = False  # as the queue of its version was told: see `may_take`
    placed: dict[RowKey, Request] = field(default_factory=dict)
    pending_tokens: int = 0  # of prompts it computes for other workers
    _rows: int = 0
    _unprefilled_blocks: int = 0  # of prompts placed and not yet computed
    _helpers: dict[RowKey, "Worker"] = field(default_factory=dict)  # who computes prompts of rows placed here
    _runs: int = 0  # sent
    _unreported: deque[tuple[int, int]] = field(default_factory=deque)  # (run, tokens it computes here)
    _unreported_tokens: int = 0

    @property
    def takes_rows(self) -> bool:
        return self.hello.serves != PREFILL

    def is_dead(self, now_ms: float) -> bool:
        """Asked with every heartbeat, of which the next one would be too late."""
        return now_ms + HEARTBEAT_MS - self.heard_ms > DEAD_MS

    def is_silent(self, now_ms: float) -> bool:
        return now_ms - self.heard_ms > SUSPECT_MS

    def is_suspect(self, now_ms: float) -> bool:
        return self.report is None or self.is_silent(now_ms)

    def may_take(self, now_ms: float) -> bool:
        is_full = self.report is not None and (self.report.full or self.report.warming)
        if self.draining or is_full or self.is_doubted:
            return False
        return not self.is_suspect(now_ms) and now_ms >= self.paused_until_ms

    def sent(self, request: Request, helper: "Worker | None") -> None:
        """A Run went out; its prompt is computed here, or by `helper`."""
        self.add(request)
        self._runs += 1
        tokens = request.prompt_tokens if helper is None else 0
        self._unreported.append((self._runs, tokens))
        self._unreported_tokens += tokens
        if helper is not None:
            self._helpers[request.row] = helper
            helper.pending_tokens += request.prompt_tokens

    def add(self, request: Request) -> None:
        self.placed[request.row] = request
        self._rows += request.choices
        if not request.prefilled:
            self._unprefilled_blocks += self._blocks(request)

    def remove(self, row: RowKey) -> Request | None:
        self.prefilled(row)
        request = self.placed.pop(row, None)
        if request is not None:
            self._rows -= request.choices
        return request

    def prefilled(self, row: RowKey) -> None:
        request = self.placed.get(row)
        if request is not None and not request.prefilled:
            request.prefilled = True
            self._unprefilled_blocks -= self._blocks(request)
            if helper := self._helpers.pop(row, None):
                helper.pending_tokens -= request.prompt_tokens

    def reported(self, report: Report, now_ms: float) -> None:
        self.report, self.heard_ms, self.reported_ms = report, now_ms, now_ms
        self.is_doubted = False
        if len(report.cost) == _COSTS:
            self.cost = StepCost(*report.cost)
        self.draining = self.draining or report.draining
        while self._unreported and self._unreported[0][0] <= report.runs:
            self._unreported_tokens -= self._unreported.popleft()[1]
        for row in report.prefilled:
            self.prefilled(row)
        self.prefixes.reported(report)

    def lost(self) -> list[Request]:
        """The rows that were placed here; nobody computes for them any more."""
        return [request for row in list(self.placed) if (request := self.remove(row))]

    def _blocks(self, request: Request) -> int:
        return blocks_needed(request.prompt_tokens + 1, self.capacity.block_size) + request.choices - 1

    def replica(self) -> Replica:
        """What it reported, and what it was sent since: a report may cross a Run on its way."""
        report = self.report
        reported_tokens = report.pending_prefill_tokens if report else 0
        free_blocks = report.free_blocks if report else self.capacity.blocks
        return Replica(
            key=self.hello.incarnation,
            rows=self._rows,
            max_rows=self.capacity.max_rows,
            max_tokens=self.capacity.max_tokens,
            pending_prefill_tokens=reported_tokens + self._unreported_tokens,
            free_blocks=free_blocks - self._unprefilled_blocks,
            block_size=self.capacity.block_size,
            is_for_long_prompts=LONG_PROMPT in self.hello.labels,
            row_limit=report.row_limit if report else 0,
            cost=self.cost,
            takes_more=self.takes_more,
            reported_ms=self.reported_ms,
        )

    def prefill_replica(self) -> PrefillReplica:
        return PrefillReplica(self.hello.incarnation, self.pending_tokens, self.capacity.max_tokens)

    def up(self) -> WorkerUp:
        hello = self.hello
        return WorkerUp(
            id=hello.id,
            incarnation=hello.incarnation,
            address=hello.address,
            model=hello.model,
            digest=hello.digest,
            max_tokens=self.capacity.max_tokens,
        )

    def view(self, now_ms: float) -> WorkerView:
        hello, report = self.hello, self.report
        return WorkerView(
            id=hello.id,
            incarnation=hello.incarnation,
            model=hello.model,
            digest=hello.digest,
            address=hello.address,
            state=self._state(now_ms),
            running=report.running if report else 0,
            waiting=report.waiting if report else 0,
            pending_prefill_tokens=report.pending_prefill_tokens if report else 0,
            blocks=self.capacity.blocks,
            free_blocks=report.free_blocks if report else self.capacity.blocks,
            block_size=self.capacity.block_size,
            batch_rows=report.batch_rows if report else 0,
            step=report.step if report else 0,
            step_ms=report.step_ms if report else 0.0,
            tokens_per_s=report.tokens_per_s if report else 0.0,
            preemptions=report.preemptions if report else 0,
            age_ms=int(now_ms - self.heard_ms),
            serves=hello.serves,
            labels=hello.labels,
            swaps=report.swaps if report else 0,
            paused=report.paused if report else 0,
            preemptions_per_min=report.preemptions_per_min if report else 0.0,
            full=report.full if report else False,
            usage_mismatches=report.usage_mismatches if report else 0,
            epoch=hello.epoch,
        )

    def _state(self, now_ms: float) -> str:
        if self.draining:
            return "draining"
        if self.is_suspect(now_ms):
            return "suspect"
        return "warming" if self.report is not None and self.report.warming else "ready"


@dataclass(slots=True, eq=False)
class Gateway:
    """`lost_ms` is when its connection went; it has a moment to come back before its requests end.

    `id` is empty until it connected.
    """

    id: str
    incarnation: str
    peer: Peer
    heard_ms: float
    lost_ms: float | None = None
    rows: dict[RowKey, Request] = field(default_factory=dict)

    def release(self, request: Request) -> None:
        """Forget the request, unless its number stands for another attempt by now."""
        if self.rows.get(request.row) is request:
            del self.rows[request.row]

    def view(self) -> GatewayView:
        return GatewayView(id=self.id, incarnation=self.incarnation, streams=len(self.rows))
