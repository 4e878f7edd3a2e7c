"""A worker's backend whose tokens say which weights made them, for whom, and which they are."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gpuworker.backends.base import BackendStep, OnDeath, OnPrefill, OnStep
from gpuworker.engine.output import StepOutput
from gpuworker.engine.stats import EngineStats
from gpuworker.engine.transfer import PrefillResult
from gpuworker.wire.messages import Capacity, End, RowKey, Submit, pack_ids
from policy.flow import Flow
from policy.hang import hangs

BLOCKS, MAX_ROWS = 64, 3
STEP_S = (0.02, 0.06)
WARMS_S = (0.0, 0.02, 0.3)
PREDICTED_MS = 60.0


def token(digest: str, request_id: str, position: int) -> str:
    return f"{digest}|{request_id}|{position};"


@dataclass(slots=True)
class _Row:
    submit: Submit
    produced: int  # by this worker and by those it was lost with
    reason: str = ""  # why it is to end


class TellingBackend:
    """One token of every row in a step, the first one with its prompt. `digest` is what it really holds.

    `begun` is told of each row that it starts to compute.
    """

    kv_dtype = ""

    def __init__(self, digest: str, random: Random, begun: Callable[[RowKey, Submit], None]) -> None:
        self.capacity = Capacity(blocks=BLOCKS, block_size=16, max_tokens=512, max_rows=MAX_ROWS)
        self.digest = digest
        self.rows: dict[RowKey, _Row] = {}
        self.is_warm = False
        self._random = random
        self._begun = begun
        self._taken = self._step = self._output_tokens = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stepping_since = 0.0
        self._stalls_s = 0.0  # the next step lasts so much longer

    async def start(self, on_step: OnStep, on_death: OnDeath) -> EngineStats:
        self._loop = asyncio.get_running_loop()
        self._on_step = on_step
        await asyncio.sleep(self._random.choice(WARMS_S))
        self.is_warm = True
        return self._stats()

    def submit(self, row: RowKey, submit: Submit, prefilled: PrefillResult | None = None) -> None:
        self._begun(row, submit)
        self._taken += 1
        self.rows[row] = _Row(submit, submit.emitted)
        self._step_soon()

    def prefill(self, row: RowKey, submit: Submit, on_done: OnPrefill) -> None:
        raise AssertionError("it has no KV to give away")

    def pause(self, row: RowKey) -> None: ...

    def resume(self, row: RowKey) -> None: ...

    def cancel(self, row: RowKey, reason: str) -> None:
        if known := self.rows.get(row):
            known.reason = known.reason or reason
            self._step_soon()

    def cancel_gateway(self, gateway: str, reason: str) -> None:
        for row in [row for row in self.rows if row.gateway == gateway]:
            self.cancel(row, reason)

    def yield_also(self, flows: frozenset[Flow]) -> None: ...

    def stall(self, seconds: float) -> None:
        self._stalls_s = seconds

    def is_hung(self) -> bool:
        if self._timer is None:
            return False
        return hangs((self._loop.time() - self._stepping_since) * 1000, PREDICTED_MS)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _step_soon(self) -> None:
        if self._timer is None and self.rows:
            self._stepping_since = self._loop.time()
            lasts_s, self._stalls_s = self._random.uniform(*STEP_S) + self._stalls_s, 0.0
            self._timer = self._loop.call_later(lasts_s, self._stepped)

    def _stepped(self) -> None:
        self._timer = None
        self._step += 1
        output = StepOutput(step=self._step)
        for key, row in list(self.rows.items()):
            self._row_step(output, key, row)
        self._on_step(BackendStep(output=output, stats=self._stats(), taken=self._taken))
        self._step_soon()

    def _row_step(self, output: StepOutput, key: RowKey, row: _Row) -> None:
        columns, submit = output.gateway(key), row.submit
        if not row.reason:
            if row.produced == submit.emitted:
                output.prefilled.append(key)
            text = token(self.digest, submit.request_id, row.produced)
            ids = pack_ids([row.produced]) if submit.wants_ids else b""
            columns.add_entry(key.sid, 0, row.produced, 1, text, [], ids)
            row.produced += 1
            self._output_tokens += 1
            if row.produced >= submit.max_tokens:
                row.reason = "length"
        if row.reason:
            del self.rows[key]
            output.ended.append(key)
            columns.ends.append(_end(key.sid, row))

    def _stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.rows),
            waiting=0,
            pending_prefill_tokens=0,
            blocks=BLOCKS,
            free_blocks=BLOCKS,
            cached_blocks=0,
            step=self._step,
            step_ms=40.0,
            batch_rows=len(self.rows),
            paused=0,
            preemptions=0,
            swaps=0,
            prompt_tokens=0,
            cached_tokens=0,
            output_tokens=self._output_tokens,
        )


def _end(sid: int, row: _Row) -> End:
    return End(
        sid=sid,
        reason=row.reason,
        prompt_tokens=len(row.submit.prompt) // 4,
        cached_tokens=0,
        output_tokens=row.produced,
        queue_ms=0,
        prefill_ms=1,
        decode_ms=1,
        preemptions=0,
    )
