"""Runs our engine on a thread of its own, so that a long forward pass never delays a socket.

The event loop posts commands to an inbox; the engine drains it before it plans a step and again after the
forward. Each step comes back with one `call_soon_threadsafe`. The thread sleeps while there is nothing to do.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from gpuworker.backends.base import BackendError, BackendStep, OnDeath, OnPrefill, OnStep, RefusedRow
from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.engine import Engine, Unservable
from gpuworker.engine.stats import EngineStats
from gpuworker.engine.transfer import PrefillResult
from gpuworker.wire.messages import Capacity, RowKey, Sampling, Submit, pack_ids
from policy.flow import Flow
from policy.hang import hangs

MAX_UNDELIVERED_STEPS = 64  # the engine waits for a loop that is this far behind
STOP_TIMEOUT_S = 5.0  # a forward pass cannot be interrupted
LATE_S = 1.0
WARM_UP_PROMPT_TOKENS = 64
WARM_UP_OUTPUT_TOKENS = 4


def now_ms() -> float:
    return time.monotonic() * 1000


def _nothing() -> None:
    """A command that only wakes the thread."""


class EngineBackend:
    """Owns the thread; the engine is touched by nothing else once `start` was called."""

    def __init__(self, engine: Engine, *, max_rows: int) -> None:
        self._engine = engine
        self.capacity = Capacity(
            blocks=engine.stats().blocks,
            block_size=BLOCK_SIZE,
            max_tokens=engine.max_servable_tokens,
            max_rows=max_rows,
        )
        self._inbox: deque[Callable[[], None]] = deque()
        self._refused: list[RefusedRow] = []
        self._taken = 0  # submissions the engine was given
        self._prefills: dict[RowKey, OnPrefill] = {}  # the event loop's
        self._changed = threading.Condition()  # guards the two below, and wakes the thread
        self._undelivered = 0
        self._stopping = False
        engine.wake = lambda: self._post(_nothing)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def kv_dtype(self) -> str:
        return self._engine.kv_dtype

    async def start(self, on_step: OnStep, on_death: OnDeath) -> EngineStats:
        self._loop = asyncio.get_running_loop()
        self._on_step, self._on_death = on_step, on_death
        self._ready: asyncio.Future[EngineStats] = self._loop.create_future()
        self._thread.start()
        return await self._ready

    def submit(self, row: RowKey, submit: Submit, prefilled: PrefillResult | None = None) -> None:
        arrived_ms = now_ms()
        self._post(lambda: self._engine_submit(row, submit, arrived_ms, prefilled))

    def prefill(self, row: RowKey, submit: Submit, on_done: OnPrefill) -> None:
        arrived_ms = now_ms()
        self._prefills[row] = on_done
        self._post(lambda: self._engine_prefill(row, submit, arrived_ms))

    def pause(self, row: RowKey) -> None:
        self._post(lambda: self._engine.hold(row, True))

    def resume(self, row: RowKey) -> None:
        self._post(lambda: self._engine.hold(row, False))

    def cancel(self, row: RowKey, reason: str) -> None:
        self._post(lambda: self._engine.cancel(row, reason))

    def cancel_gateway(self, gateway: str, reason: str) -> None:
        self._post(lambda: self._engine.cancel_gateway(gateway, reason))

    def yield_also(self, flows: frozenset[Flow]) -> None:
        self._post(lambda: self._engine.yield_also(flows))

    def is_hung(self) -> bool:
        running = self._engine.running_step
        return running is not None and hangs(now_ms() - running[0], running[1])

    async def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)

    def _post(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._inbox.append(command)
            self._changed.notify()

    def _deliver(self, step: BackendStep) -> None:
        """On the event loop."""
        with self._changed:
            self._undelivered -= 1
            self._changed.notify()
        for row, result in step.output.exports:
            self._prefilled(row, result)
        self._on_step(step)

    def _prefilled(self, row: RowKey, result: PrefillResult | None) -> None:
        if on_done := self._prefills.pop(row, None):
            on_done(result)

    # -- the engine's thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._warm_up()
            self._call_soon(self._ready.set_result, self._engine.stats())
            while self._wait_for_work():
                self._step()
        except BaseException as error:  # whatever it was: the process must not stay half alive
            self._call_soon(self._die, error)
        finally:
            self._engine.close()

    def _step(self) -> None:
        output = self._engine.step(now_ms, self._drain_inbox)
        refused, self._refused = self._refused, []
        refused += [RefusedRow(*refusal) for refusal in output.refused]
        events = self._engine.take_cache_events()
        with self._changed:
            self._undelivered += 1
        stats, taken = self._engine.stats(), self._taken
        step = BackendStep(output, stats, refused, events.added, events.evicted, taken)
        self._call_soon(self._deliver, step)

    def _die(self, error: BaseException) -> None:
        if self._ready.done():
            self._on_death(error)
        else:
            self._ready.set_exception(BackendError(f"warm-up failed: {type(error).__name__}: {error}"))

    def _call_soon(self, callback: Callable[[Any], None], argument: Any) -> None:
        if not self._loop.is_closed():  # closed: the process is on its way out
            self._loop.call_soon_threadsafe(callback, argument)

    def _wait_for_work(self) -> bool:
        """Also at a row's deadline. False when the backend was stopped."""

        def is_due() -> bool:
            has_work = bool(self._inbox) or self._engine.has_work() or now_ms() >= deadline_ms
            return self._stopping or (has_work and self._undelivered < MAX_UNDELIVERED_STEPS)

        with self._changed:
            deadline_ms = self._engine.next_deadline_ms or math.inf
            patience_s = max(deadline_ms - now_ms(), 0.0) / 1000
            while not self._changed.wait_for(is_due, min(patience_s, threading.TIMEOUT_MAX)):
                patience_s = LATE_S  # the deadline has passed, but the loop is behind
            return not self._stopping

    def _drain_inbox(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _engine_submit(
        self, row: RowKey, submit: Submit, arrived_ms: float, prefilled: PrefillResult | None
    ) -> None:
        self._taken += 1
        try:
            self._engine.submit(row, submit, arrived_ms, prefilled)
        except Unservable as refusal:
            self._refused.append(RefusedRow(row, refusal.code, refusal.message))

    def _engine_prefill(self, row: RowKey, submit: Submit, arrived_ms: float) -> None:
        self._taken += 1
        try:
            self._engine.prefill(row, submit, arrived_ms)
        except Unservable:
            self._loop.call_soon_threadsafe(self._prefilled, row, None)

    def _warm_up(self) -> None:
        """One short request: the first forward passes allocate and compile, and teach the pacer."""
        tokens = min(WARM_UP_PROMPT_TOKENS, self._engine.max_servable_tokens - WARM_UP_OUTPUT_TOKENS)
        submit = Submit(
            sid=0,
            request_id="warm-up",
            attempt=1,
            tenant="",
            model="",
            digest="",
            klass="",
            prompt=pack_ids([0] * max(tokens, 1)),
            max_tokens=WARM_UP_OUTPUT_TOKENS,
            sampling=Sampling(temperature=0.0),
            ignore_eos=True,
        )
        self._engine.submit(RowKey("", 0), submit, now_ms())
        while self._engine.has_work():
            self._engine.step(now_ms)
        self._engine.forget_cached()
