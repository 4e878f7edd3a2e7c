"""An upstream server as a backend: rows in, token rows out, and as many of them as it answers well.

Everything happens on the event loop. What several answers brought in one turn of the loop leaves as one step.
A row that the upstream gave nothing of is refused with `capacity`, so that another replica takes it.
"""

import asyncio
import logging

from gpuworker.backends.base import BackendStep, OnDeath, OnPrefill, OnStep
from gpuworker.backends.external.answer import Dialect, Unsayable, UpstreamRequest
from gpuworker.backends.external.choice import Choice
from gpuworker.backends.external.failures import Failure
from gpuworker.backends.external.fates import Ended, Fates
from gpuworker.backends.external.health import Health
from gpuworker.backends.external.http_client import HttpClient
from gpuworker.backends.external.intake import Intake
from gpuworker.backends.external.row import USAGE_GRACE_MS, ExternalRow
from gpuworker.backends.external.settings import UpstreamSettings
from gpuworker.backends.external.tally import BLOCK_SIZE, Tally
from gpuworker.engine.stats import EngineStats
from gpuworker.engine.transfer import PrefillResult
from gpuworker.upstream_terms import endpoint_parse
from gpuworker.wire.messages import Capacity, RowKey, Submit, TokenLogprobs
from policy.flow import Flow
from policy.gradient_limit import GradientLimit, GradientSettings

TICK_S = 0.05
DRAIN_ANSWER_S = 2.0  # for the end of an answer whose last event came: its connection is then kept

logger = logging.getLogger(__name__)


class ExternalBackend:
    def __init__(
        self, settings: UpstreamSettings, dialect: Dialect, intake: Intake, *, max_rows: int
    ) -> None:
        self._settings, self._dialect, self._intake = settings, dialect, intake
        self.capacity = Capacity(
            blocks=max_rows * intake.blocks_of_row(max_rows),
            block_size=BLOCK_SIZE,
            max_tokens=intake.max_tokens,
            max_rows=max_rows,
        )
        self._tally = Tally(self.capacity)
        self._limit = GradientLimit(GradientSettings(initial=max_rows, most=max_rows))
        self._rows: dict[RowKey, ExternalRow] = {}
        self._fates = Fates()
        self._is_flush_due = False
        self._heard_ms = 0.0  # when the upstream last gave a token
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def kv_dtype(self) -> str:
        return ""

    async def start(self, on_step: OnStep, on_death: OnDeath) -> EngineStats:
        """At once: until the upstream serves what it should, the worker takes nothing."""
        self._loop = asyncio.get_running_loop()
        self._on_step, self._on_death = on_step, on_death
        settings = self._settings
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        self._client = HttpClient(
            endpoint_parse(settings.url),
            headers,
            connect_s=settings.connect_s,
            on_idle_lost=lambda: self._health.suspect(),
        )
        probe, context_tokens = self._intake.probe(), self.capacity.max_tokens
        self._health = Health(settings, self._client, self._dialect, probe, context_tokens, self._flush_soon)
        for work in (self._health.run(), self._tick()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)
        return self._stats()

    def is_hung(self) -> bool:
        """What it stands for may hang: then its requests have timeouts, and the breaker opens."""
        return False

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for row in list(self._rows.values()):
            row.leave()
        self._client.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- rows ---------------------------------------------------------------------------------------------

    def submit(self, row: RowKey, submit: Submit, prefilled: PrefillResult | None = None) -> None:
        self._tally.taken += 1
        self._flush_soon()
        try:
            request = self._intake.request(submit)
            body = self._dialect.body(self._settings.model, request) if request.max_tokens > 0 else b""
        except Unsayable as error:
            self._tally.refuse(row, error.code, str(error))
            return
        busy = sum(len(other.choices) for other in self._rows.values())
        if not self._health.is_ready:
            self._tally.refuse(row, "capacity", "the upstream does not answer")
        elif busy and busy + submit.n > self._limit.limit:
            self._tally.refuse(row, "capacity", "the upstream has as much as it answers well")
        else:
            self._begin(row, request, body)

    def _begin(self, row: RowKey, request: UpstreamRequest, body: bytes) -> None:
        intake = self._intake
        external = ExternalRow(row, request, self._dialect, intake.tokenizer, self, eos_id=intake.eos_id)
        self._rows[row] = external
        if body:
            external.exchange = self._client.post(self._dialect.path, body, external)
        else:
            external.settle_unasked()

    def prefill(self, row: RowKey, submit: Submit, on_done: OnPrefill) -> None:
        on_done(None)

    def pause(self, row: RowKey) -> None:
        if found := self._rows.get(row):
            found.pause(True)

    def resume(self, row: RowKey) -> None:
        if found := self._rows.get(row):
            found.pause(False)

    def cancel(self, row: RowKey, reason: str) -> None:
        if found := self._rows.get(row):
            found.leave()
            self._end(found, reason)

    def cancel_gateway(self, gateway: str, reason: str) -> None:
        for row in [row for row in self._rows if row.gateway == gateway]:
            self.cancel(row, reason)

    def yield_also(self, flows: frozenset[Flow]) -> None:
        """Steps are the upstream's affair: the dispatcher alone keeps shares here."""

    # -- what rows say ------------------------------------------------------------------------------------

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    def row_begun(self, row: ExternalRow) -> None:
        now_ms = self.now_ms()
        self._limit.sample(now_ms, now_ms - row.arrived_ms, len(self._rows))
        self._health.answered()
        self._tally.begun(row)

    def row_given(
        self,
        row: ExternalRow,
        choice: Choice,
        count: int,
        text: str,
        logprobs: list[TokenLogprobs],
        ids: bytes,
    ) -> None:
        self._heard_ms = row.last_ms
        self._tally.give(row, choice, count, text, logprobs, ids)
        self._flush_soon()

    def row_done(self, row: ExternalRow, problems: list[str]) -> None:
        if row.exchange is not None and not row.exchange.is_over:
            self._loop.call_later(DRAIN_ANSWER_S, row.exchange.cancel)
        if problems:
            self._tally.usage_mismatches += 1
            logger.warning("usage of request %s: %s", row.submit.request_id, "; ".join(problems))
        self._end(row, row.choices[0].reason)

    def row_failed(self, row: ExternalRow, failure: Failure) -> None:
        logger.warning("request %s: %s: %s", row.submit.request_id, failure.kind, failure.message)
        if failure.kind == "refused":
            self._health.answered()
        elif failure.kind == "overloaded":
            self._limit.overloaded()
        else:
            # Nobody was told anything since: it is not slow with this one, it hangs.
            is_hung = failure.kind == "silent" and self._heard_ms <= row.last_ms
            self._health.failed(failure, is_conclusive=is_hung)
        fate = self._fates.judge(row.row, failure, has_begun=row.first_ms is not None)
        if row.first_ms is None:
            row.has_started = False  # nobody saw anything of it, so nobody pays for its prompt
        if isinstance(fate, Ended):
            self._end(row, fate.reason, fate.message)
        else:
            del self._rows[row.row]
            self._tally.refuse(row.row, fate.code, fate.message)
            self._flush_soon()

    def _end(self, row: ExternalRow, reason: str, message: str = "") -> None:
        del self._rows[row.row]
        self._fates.forget(row.row)
        self._tally.end(row, reason, message, self.now_ms())
        self._flush_soon()

    # -- time ---------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self.now_ms()
            for row in list(self._rows.values()):
                self._row_tick(row, now_ms)
            if self._tally.work(self._rows.values(), now_ms):
                self._flush_soon()

    def _row_tick(self, row: ExternalRow, now_ms: float) -> None:
        silent_s = (now_ms - row.last_ms) / 1000
        if now_ms >= row.deadline_ms:
            self.cancel(row.row, "deadline")
        elif row.is_paused:
            return
        elif row.stopped_ms is not None:
            if now_ms - row.stopped_ms > USAGE_GRACE_MS:
                row.leave()
                row.settle()
        elif silent_s > (self._settings.first_token_s if row.first_ms is None else self._settings.silence_s):
            row.leave()
            self.row_failed(row, Failure("silent", f"no token for {silent_s:.1f} s"))

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        output, refused = self._tally.take()
        self._on_step(BackendStep(output, self._stats(), refused, taken=self._tally.taken))

    def _stats(self) -> EngineStats:
        return self._tally.stats(
            self._rows.values(), row_limit=self._limit.limit, is_full=not self._health.is_ready
        )

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_death(error)
