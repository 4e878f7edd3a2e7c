"""Decides what the next step computes: continuous batching with chunked prefill over a paged KV pool.

One mixed step holds one token of every decoding row, then chunks of prompts begun earlier and new admissions,
within a time budget (Sarathi-Serve, arXiv 2403.02310). Flows within their equal share come first; the decodes
of the others may be paused for a step, their KV kept, so that nobody's first token waits for another's
backlog. Pure: no torch, no clock, nothing is computed here. `schedule` and `apply` alternate; `submit`,
`cancel` and `hold` may come at any time.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from gpuworker.engine.batch import Batch
from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.budget import StepLimits
from gpuworker.engine.composition import StepComposition
from gpuworker.engine.deadlines import Deadlines
from gpuworker.engine.flows import Flows
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import PlanRow, Sampled, SequenceKey, StepPlan, StepResult
from gpuworker.engine.preemption import Recovery
from gpuworker.engine.sequence import Sequence, Status
from gpuworker.wire.messages import TokenLogprobs
from policy.flow import Flow


class RowSink(Protocol):
    """Is shown what a step gave to each row."""

    def token(self, sequence: Sequence, sampled: Sampled) -> str:
        """The token is appended already. Returns why the row ends with it, or an empty string."""

    def prompt_logprobs(self, sequence: Sequence, first: int, tokens: list[TokenLogprobs]) -> None: ...


class Scheduler:
    def __init__(
        self,
        kv: KVManager,
        *,
        max_rows: int,
        max_context_tokens: int,
        limits: StepLimits,
        recovery: Recovery,
    ) -> None:
        self.kv = kv
        # A row that runs alone may fill the pool, so within this bound no row is ever stuck.
        self.max_servable_tokens = min(max_context_tokens, kv.pool.blocks * BLOCK_SIZE)
        # Of the last step:
        self.paused = 0  # decodes that it left out
        self.row_limit = 0  # rows like the running ones that can decode within the target latency
        self.costs: Mapping[Flow, float] = {}  # predicted milliseconds
        self._limits = limits
        self._flows = Flows()
        self._batch = Batch(kv, self._flows, recovery, max_rows=max_rows)
        self._rows: dict[SequenceKey, Sequence] = {}
        self._deadlines = Deadlines(self._rows)
        self._finished: list[Sequence] = []
        self._in_flight: frozenset[SequenceKey] = frozenset()

    # -- requests in and out ------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """The caller has checked the servable bound."""
        if sequence.key in self._rows:
            raise ValueError(f"{sequence.key} is already known")
        self._rows[sequence.key] = sequence
        self._flows.enter(sequence)
        self._deadlines.add(sequence)

    def cancel(self, key: SequenceKey, reason: str, message: str = "") -> None:
        """In any state, and any number of times. A row in flight keeps its blocks until `apply`."""
        sequence = self._rows.get(key)
        if sequence is None or sequence.reason:
            return
        sequence.reason, sequence.message = reason, message
        if key not in self._in_flight:
            self._retire(sequence)

    def hold(self, key: SequenceKey, held: bool) -> None:
        """A held row keeps its KV and computes nothing; it is the first to leave the device."""
        sequence = self._rows.get(key)
        if sequence is not None:
            self._flows.hold(sequence, held)

    def yield_also(self, flows: frozenset[Flow]) -> None:
        """These flows, and no others, are over their share in the whole fleet: they yield here too."""
        self._flows.over_in_fleet = flows

    def take_finished(self) -> list[Sequence]:
        """Rows that ended since the last call, each exactly once. They hold nothing any more."""
        finished, self._finished = self._finished, []
        return finished

    def sequence(self, key: SequenceKey) -> Sequence:
        """Of a row that has not ended."""
        return self._rows[key]

    @property
    def sequences(self) -> Collection[Sequence]:
        """All that have not ended."""
        return self._rows.values()

    def has_work(self) -> bool:
        """Whether a step would compute something or tell of an end."""
        if self._finished or self._batch.active:
            return True
        return any(self._flows.head(flow) for flow in self._flows)

    @property
    def next_deadline_ms(self) -> float | None:
        return self._deadlines.next_ms

    @property
    def running(self) -> int:
        return len(self._batch.rows)

    @property
    def waiting(self) -> int:
        return self._flows.waiting

    @property
    def preemptions(self) -> int:
        """Since start, of either kind."""
        return self._batch.preemptions

    @property
    def swaps(self) -> int:
        """Preemptions to host memory since start."""
        return self._batch.swaps

    @property
    def pending_prefill_tokens(self) -> int:
        return self._flows.waiting_prefill_tokens + sum(row.prefill_tokens for row in self._batch.rows)

    def check_integrity(self) -> None:
        """Raises PoolCorrupt when blocks are lost or shared by accident. Cheap: meant for idle moments."""
        self.kv.check_integrity(self._rows.values())

    # -- one step -----------------------------------------------------------------------------------------

    def schedule(self, now_ms: float) -> StepPlan:
        if self._in_flight:
            raise RuntimeError("the previous plan was not applied")
        for key in self._deadlines.take_expired(now_ms):
            self.cancel(key, "deadline")
        active = self._batch.active
        row_limit = self.row_limit = self._limits.row_limit(active)
        shares = self._batch.shares = self._flows.shares(row_limit)
        over, capacity = shares.over, shares.capacity
        decoding = [row for row in active if row.remaining == 1]
        yielding = [row for row in decoding if row.flow in over]
        budget = self._limits.budget(decoding, now_ms, all_yield=len(yielding) == len(decoding))

        step = StepComposition(self.kv, self._flows, self._batch, budget, now_ms)
        step.owe_batch(yielding, self._flows.floor.step_ms(budget.most_ms))
        left_out = step.add_decodes([row for row in decoding if row.flow not in over])
        budget.keep_for(yielding)
        step.add_owed_prompts(row_limit)
        admitting = step.add_prompts(self._flows.keys() - over, capacity)
        # Before the decodes of over-share flows, to which they leave their time: what a step holds already
        # does not give way.
        budget.keep_all()
        admitting = step.add_prompts(step.entitled(over), row_limit, admitting=admitting)
        budget.begin_yielding(others=bool(step.rows))
        step.add_yielding(yielding + left_out)
        step.add_prompts(over, row_limit, admitting=admitting)
        self.paused, self.costs = step.paused, step.costs
        self._flows.stepped(step.costs, self._limits.cost().base_ms)
        self._in_flight = frozenset(self._batch.planned)
        return StepPlan(step.rows, list(step.starts.values()), self.kv.take_moves())

    def apply(self, plan: StepPlan, result: StepResult, now_ms: float, sink: RowSink) -> None:
        """Takes in a step's tokens: rows that were cancelled meanwhile get none."""
        self._in_flight = frozenset()
        for row in plan.rows:
            sequence = self._rows[row.key]
            if not sequence.reason and row.key in result.failed:
                sequence.reason, sequence.message = "error", result.failed[row.key]
            if not sequence.reason:
                self._advance(sequence, row, result.rows[row.key], now_ms, sink)
            if sequence.reason:
                self._retire(sequence)

    def _advance(
        self, sequence: Sequence, row: PlanRow, sampled: Sampled, now_ms: float, sink: RowSink
    ) -> None:
        sequence.num_computed += len(row.tokens)
        self.kv.publish(sequence)
        # What a preempted row computes again was told before.
        seen = sequence.prompt_reported - (row.start + 1)
        if fresh := sampled.prompt[max(seen, 0) :]:
            sink.prompt_logprobs(sequence, sequence.prompt_reported, fresh)
            sequence.prompt_reported += len(fresh)
        if not row.sample:
            if not sequence.remaining:  # nothing but the prompt was wanted
                sequence.reason = "length"
            return
        sequence.token_ids.append(sampled.token)
        if sequence.first_token_ms is None:
            sequence.first_token_ms = now_ms
        sequence.reason = sink.token(sequence, sampled)
        if not sequence.reason and sampled.token in sequence.stop_ids:
            sequence.reason, sequence.stopped_by = "stop", sampled.token
        elif not sequence.reason and sequence.output_len >= sequence.max_tokens:
            sequence.reason = "length"

    def _retire(self, sequence: Sequence) -> None:
        self.kv.release(sequence)
        if sequence.status is Status.RUNNING:
            self._batch.leave(sequence)
        else:
            self._flows.take(sequence)
        sequence.status = Status.FINISHED
        self._flows.leave(sequence)
        del self._rows[sequence.key]
        self._finished.append(sequence)
