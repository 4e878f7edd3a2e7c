"""What rows of an upstream have given since the last step, and the figures of a replica that computes nothing
itself: rows are what is scarce, and machine time is the time that rows take."""

from collections import Counter
from collections.abc import Collection

from gpuworker.backends.base import RefusedRow
from gpuworker.backends.external.choice import Choice
from gpuworker.backends.external.row import ExternalRow
from gpuworker.engine.machine_time import time_divide
from gpuworker.engine.output import OWN_ENDS, Checkpoint, StepOutput
from gpuworker.engine.stats import EngineStats
from gpuworker.engine.step_results import SILENT_ENDS
from gpuworker.wire.messages import CHECKPOINT_TOKENS, Capacity, ChoiceEnd, End, RowKey, TokenLogprobs
from policy.flow import Flow

BLOCK_SIZE = 16


class Tally:
    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._step = 1
        self._output = StepOutput(self._step)
        self._refused: list[RefusedRow] = []
        self._batch_rows = 0
        self._worked_ms: float | None = None
        self.taken = 0
        self.usage_mismatches = 0
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    def begun(self, row: ExternalRow) -> None:
        self._output.prefilled.append(row.row)
        self._checkpoint(row, "")

    def give(
        self,
        row: ExternalRow,
        choice: Choice,
        count: int,
        text: str,
        logprobs: list[TokenLogprobs],
        ids: bytes,
    ) -> None:
        """`choice.output` counts them already."""
        start = choice.output - count
        columns = self._output.gateway(row.row)
        columns.add_entry(row.row.sid, choice.index, start, count, text, logprobs, ids)
        self._output_tokens += count
        if count and start // CHECKPOINT_TOKENS != choice.output // CHECKPOINT_TOKENS:
            self._checkpoint(row, "")

    def end(self, row: ExternalRow, reason: str, message: str, now_ms: float) -> None:
        columns, sid = self._output.gateway(row.row), row.row.sid
        for choice in row.choices:
            choice.reason = choice.reason or reason
            if (tail := choice.tail()) and reason not in SILENT_ENDS:
                self.give(row, choice, 0, tail, [], b"")
        if len(row.choices) > 1:
            columns.choice_ends += [
                ChoiceEnd(
                    sid=sid,
                    choice=choice.index,
                    reason=choice.reason,
                    output_tokens=choice.output,
                    stopped_by=choice.stopped_by,
                )
                for choice in row.choices
            ]
        first_ms = now_ms if row.first_ms is None else row.first_ms
        prompt_tokens = row.prompt_tokens if row.has_started else 0
        columns.ends.append(
            End(
                sid=sid,
                reason=reason,
                prompt_tokens=prompt_tokens,
                cached_tokens=row.cached_tokens,
                output_tokens=row.output_tokens,
                queue_ms=0,
                prefill_ms=round(first_ms - row.arrived_ms),
                decode_ms=round(now_ms - first_ms),
                preemptions=0,
                message=message,
                stopped_by=row.choices[0].stopped_by if reason == "stop" else None,
            )
        )
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += row.cached_tokens
        self._output.ended.append(row.row)
        if reason not in OWN_ENDS:
            self._output.cut.append(row.row)
        self._checkpoint(row, reason)

    def refuse(self, row: RowKey, code: str, message: str) -> None:
        """Nothing came of it."""
        self._refused.append(RefusedRow(row, code, message))

    def work(self, rows: Collection[ExternalRow], now_ms: float) -> bool:
        """The time since the last call, divided among those whose rows took it. Whether there was any."""
        since_ms, self._worked_ms = self._worked_ms, now_ms if rows else None
        if since_ms is None or not rows:
            return False
        flows: Counter[Flow] = Counter()
        for row in rows:
            flows[Flow(row.submit.tenant, row.submit.klass)] += len(row.choices)
        self._output.work += time_divide(round((now_ms - since_ms) * 1000), flows)
        return True

    def take(self) -> tuple[StepOutput, list[RefusedRow]]:
        output, self._step = self._output, self._step + 1
        refused, self._refused = self._refused, []
        self._output = StepOutput(self._step)
        self._batch_rows = sum(len(columns.sids) for columns in output.gateways.values())
        return output, refused

    def stats(self, rows: Collection[ExternalRow], *, row_limit: int, is_full: bool) -> EngineStats:
        running = sum(1 for row in rows if row.first_ms is not None)
        capacity = self._capacity
        held = sum(len(row.choices) for row in rows) * (capacity.blocks // capacity.max_rows)
        return EngineStats(
            running=running,
            waiting=len(rows) - running,
            pending_prefill_tokens=0,
            blocks=capacity.blocks,
            free_blocks=max(capacity.blocks - held, 0),
            cached_blocks=0,
            step=self._step,
            step_ms=0.0,
            batch_rows=self._batch_rows,
            paused=0,
            preemptions=0,
            swaps=0,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            row_limit=row_limit,
            is_full=is_full,
            usage_mismatches=self.usage_mismatches,
        )

    def _checkpoint(self, row: ExternalRow, reason: str) -> None:
        self._output.put_checkpoint(
            Checkpoint(
                row=row.row,
                submit=row.submit,
                prompt_tokens=row.prompt_tokens if row.has_started else 0,
                cached_tokens=row.cached_tokens,
                output_tokens=row.output_tokens,
                reason=reason,
            )
        )
