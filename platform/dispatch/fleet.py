"""What the dispatcher knows of each worker and gateway: last report, own placements since, liveness."""

from dataclasses import dataclass, field
from typing import Protocol

from dispatch.queues import Request
from gpuworker.wire.messages import (
    DEAD_MS,
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
from policy.placement import Replica, blocks_needed

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
    paused_until_ms: float = 0.0  # it said that it is full
    report: Report | None = None
    draining: bool = False  # it refused a row because it stops; it gets nothing more
    placed: dict[RowKey, Request] = field(default_factory=dict)
    _unprefilled_tokens: int = 0  # prompts placed and not yet computed
    _unprefilled_blocks: int = 0
    _unreported_tokens: int = 0  # prompts placed since the last report

    def is_dead(self, now_ms: float) -> bool:
        return now_ms - self.heard_ms > DEAD_MS

    def is_silent(self, now_ms: float) -> bool:
        return now_ms - self.heard_ms > SUSPECT_MS

    def is_suspect(self, now_ms: float) -> bool:
        return self.report is None or self.is_silent(now_ms)

    def may_take(self, now_ms: float) -> bool:
        return not self.draining and not self.is_suspect(now_ms) and now_ms >= self.paused_until_ms

    def add(self, request: Request) -> None:
        self.placed[request.row] = request
        if not request.prefilled:
            self._unprefilled_tokens += request.prompt_tokens
            self._unprefilled_blocks += self._blocks(request)
            self._unreported_tokens += request.prompt_tokens

    def remove(self, row: RowKey) -> Request | None:
        self.prefilled(row)
        return self.placed.pop(row, None)

    def prefilled(self, row: RowKey) -> None:
        request = self.placed.get(row)
        if request is not None and not request.prefilled:
            request.prefilled = True
            self._unprefilled_tokens -= request.prompt_tokens
            self._unprefilled_blocks -= self._blocks(request)

    def reported(self, report: Report, now_ms: float) -> None:
        self.report, self.heard_ms, self._unreported_tokens = report, now_ms, 0
        for row in report.prefilled:
            self.prefilled(row)

    def _blocks(self, request: Request) -> int:
        return blocks_needed(request.prompt_tokens + 1, self.capacity.block_size)

    def replica(self) -> Replica:
        """Own count of uncomputed prompts bounds the reported one: neither alone sees rows in flight."""
        report = self.report
        reported_tokens = report.pending_prefill_tokens if report else 0
        free_blocks = report.free_blocks if report else self.capacity.blocks
        return Replica(
            key=self.hello.incarnation,
            rows=len(self.placed),
            max_rows=self.capacity.max_rows,
            max_tokens=self.capacity.max_tokens,
            pending_prefill_tokens=min(self._unprefilled_tokens, reported_tokens + self._unreported_tokens),
            free_blocks=free_blocks - self._unprefilled_blocks,
            block_size=self.capacity.block_size,
        )

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
            state="draining" if self.draining else "suspect" if self.is_suspect(now_ms) else "ready",
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
        )


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
