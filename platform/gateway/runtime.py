"""One gateway process: its parts, its background tasks, and what every request asks of it."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from billing.contracts import UsageRecord
from gateway.auth import authenticate
from gateway.body import BodyReader
from gateway.errors import ApiError, overloaded, stopping
from gateway.http import Exchange
from gateway.metrics import Metrics
from gateway.settings import Settings
from gateway.snapshot import Snapshot, SnapshotFeed
from gateway.stream import Stream
from gateway.tokenization import TokenizerStore
from gateway.upstream import Upstream
from gateway.usage import usage_of
from gateway.usage_spool import UsageSpool
from gateway.watchdog import Watchdog
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant

_RESTART_S = 1.0

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Gateway:
    """Made by `Gateway.start` inside the running event loop, once per process."""

    def __init__(self, settings: Settings, metrics: Metrics, spool: UsageSpool) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.metrics = metrics
        self.spool = spool
        self.tokenizers = TokenizerStore(settings.weights)
        self.snapshots = SnapshotFeed(settings.database_url, self._snapshot_changed)
        self.upstream = Upstream(settings, metrics)
        self.bodies = BodyReader(settings.limits)
        self.open_requests = 0
        self._watchdog = Watchdog(self.upstream, settings.limits, metrics)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._conclusions: set[asyncio.Task[UsageRecord]] = set()
        self._settling: set[asyncio.Timeout] = set()
        self._is_stopping = False
        self._stop_task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings) -> "Gateway":
        """Raises JournalFailed when the spool cannot be used."""
        metrics = Metrics()
        gateway = cls(settings, metrics, await UsageSpool.open(settings, metrics))
        parts = {
            "snapshot": gateway.snapshots.run,
            "upstream": gateway.upstream.run,
            "spool": gateway.spool.run,
            "watchdog": gateway._watchdog.run,
        }
        for name, run in parts.items():
            gateway.spawn(_forever(name, run))
        return gateway

    def stop_begin(self) -> None:
        """The server drains: shortly before its limit what still runs is ended with an error. Idempotent."""
        if self._stop_task is None:
            self._stop_task = self.spawn(self._drain())

    async def _drain(self) -> None:
        await asyncio.sleep(max(self.limits.drain_s - self.limits.drain_margin_s, 0.0))
        self._streams_end()

    def _streams_end(self) -> None:
        self._is_stopping = True
        for stream in list(self.upstream.streams.values()):
            if not stream.is_settled:
                stream.fail(stopping())
        latest = asyncio.get_running_loop().time() + self._settle_s
        for guard in [guard for guard in self._settling if not guard.expired()]:
            guard.reschedule(min(guard.when() or latest, latest))

    async def close(self) -> None:
        """Requests that the server cancelled are recorded first: their parts go last."""
        self._streams_end()
        await asyncio.sleep(0)  # cancelled requests start their conclusions
        if self._conclusions:
            await asyncio.wait(self._conclusions, timeout=self.limits.settle_s + 1)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.spool.close()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that outlives the request that started it."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- what requests ask --------------------------------------------------------------------------------

    def authenticate(self, exchange: Exchange) -> KeyGrant:
        """Raises ApiError."""
        header = exchange.headers.get(b"authorization")
        return authenticate(header, self.snapshot(), self.settings.key_pepper)

    def snapshot(self) -> Snapshot:
        """Raises ApiError before the first one."""
        if self.snapshots.current is None:
            raise overloaded("the gateway is starting: it has not read keys and models yet")
        return self.snapshots.current

    def admit(self) -> None:
        """Raises ApiError when nothing new may start. Holds nothing."""
        self.stopping_refuse()
        if refusal := self.spool.refusal:
            raise overloaded(refusal, 10_000)
        if self.open_requests > self.limits.max_open_requests:
            raise overloaded("this gateway serves as many requests as it can")
        if not self.upstream.dispatcher.is_ready:
            raise overloaded("the dispatcher cannot be reached")

    def stopping_refuse(self) -> None:
        """Raises ApiError once the streams were ended."""
        if self._is_stopping:
            raise stopping()

    def route(self, grant: KeyGrant, slug: str) -> ModelRoute:
        """Raises ApiError."""
        route = self.snapshot().routes.get(slug)
        if route is None:
            raise ApiError("model_not_found", f"the model {slug!r} does not exist", param="model")
        if grant.models is not None and slug not in grant.models:
            raise ApiError("model_not_allowed", f"this API key may not use {slug!r}", param="model")
        return route

    def max_context_tokens(self, route: ModelRoute) -> int:
        """The model's context, or less where no replica has the memory for it."""
        servable = [up.max_tokens for up in self.upstream.replicas.ready() if up.digest == route.digest]
        return min(route.max_context_tokens, max(servable)) if servable else route.max_context_tokens

    def missing(self) -> list[str]:
        """What keeps this gateway from serving; empty when it is ready."""
        checks = {
            "snapshot": self.snapshots.current is not None,
            "dispatcher": self.upstream.dispatcher.is_ready,
            "worker": bool(self.upstream.replicas.ready()),
            "spool": not self.spool.refusal,
        }
        return [name for name, is_there in checks.items() if not is_there]

    # -- the end of a request -----------------------------------------------------------------------------

    def conclude(self, stream: Stream) -> "asyncio.Task[UsageRecord]":
        """Stop the work if it still runs, wait for the final counts, record them. Raises SpoolUnavailable.

        Goes on when its request is cancelled, and `close` waits for it.
        """
        task = self.spawn(self._conclude(stream))
        self._conclusions.add(task)
        task.add_done_callback(self._conclusions.discard)
        return task

    async def _conclude(self, stream: Stream) -> UsageRecord:
        try:
            await self._settle(stream)
            record = usage_of(stream, self.upstream.incarnation, time.time_ns() // 1_000_000)
            self._measure(stream, record)
            await self.spool.append(record)
            return record
        finally:
            self.upstream.forget(stream)

    async def _settle(self, stream: Stream) -> None:
        if stream.is_settled:
            return
        code = stream.failure.code if stream.failure is not None else ""
        reasons = {"": "cancelled", "slow_reader": "cancelled", "deadline_exceeded": "deadline"}
        self.upstream.cancel(stream, reasons.get(code, "error"))
        try:
            async with asyncio.timeout(self._settle_s) as guard:
                self._settling.add(guard)
                try:
                    while not stream.is_settled:
                        stream.wake.clear()
                        await stream.wake.wait()
                finally:
                    self._settling.discard(guard)
        except TimeoutError:
            self.metrics.settle_timeouts.inc()
            logger.warning("request %s: no final count after its cancel", stream.request_id)

    @property
    def _settle_s(self) -> float:
        """While stopping it is short: the error event comes after it, and before the server's limit."""
        limits = self.limits
        return min(limits.settle_s, limits.drain_margin_s / 2) if self._is_stopping else limits.settle_s

    def _measure(self, stream: Stream, record: UsageRecord) -> None:
        metrics, model = self.metrics, record.model
        metrics.requests.labels(model, record.outcome).inc()
        metrics.tokens.labels(model, "prompt").inc(record.prompt_tokens)
        metrics.tokens.labels(model, "output").inc(record.output_tokens)
        if stream.first_token_at:
            metrics.ttft.labels(model).observe(stream.first_token_at - stream.accepted_at)

    def measure(self) -> None:
        """Refresh the gauges before a scrape."""
        metrics, upstream = self.metrics, self.upstream
        metrics.open_requests.set(self.open_requests)
        metrics.open_streams.set(len(upstream.streams))
        metrics.buffered_body_bytes.set(self.bodies.buffered_bytes)
        metrics.tasks.set(len(asyncio.all_tasks()))
        metrics.workers.set(len(upstream.replicas.ready()))
        metrics.replicas_known.set(upstream.replicas.known)
        metrics.dispatcher_connected.set(upstream.dispatcher.is_ready)
        if snapshot := self.snapshots.current:
            metrics.snapshot_age.set(time.monotonic() - snapshot.loaded_at)
        self.spool.measure()

    def _snapshot_changed(self, snapshot: Snapshot) -> None:
        self.tokenizers.preload({route.digest for route in snapshot.routes.values()})


async def _forever(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A part's own error handling comes first; what escapes it is a defect, logged, and the part goes on."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("gateway part %s failed, starting it again", name)
        await asyncio.sleep(_RESTART_S)
