"""One gateway process: its parts, its background tasks, and what is open in it."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from billing.connections import Connections
from billing.idempotency import IdempotencyStore
from gateway.access.revocation import Held, Revocation, is_live, revoked
from gateway.access.slots import Slots
from gateway.access.snapshot import Snapshot, SnapshotFeed
from gateway.answers.answer import Answer
from gateway.answers.served import Served
from gateway.errors import ApiError, LimitDetail, overloaded, stopping
from gateway.http.body import BodyReader
from gateway.jobs.conclusion import Conclusions
from gateway.jobs.job import Job
from gateway.jobs.outliving import Outliving
from gateway.jobs.usage_spool import UsageSpool
from gateway.jobs.watchdog import Watchdog
from gateway.metrics import Metrics
from gateway.prompts.tokenization import TokenizerStore
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.quotas import Quotas
from gateway.quotas.spent import LedgerSpend
from gateway.settings import Settings
from gateway.token_log.log import TokenLog
from gateway.upstream.dispatcher import Upstream
from gpuworker.wire.tasks import tasks_end
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant

_RESTART_S = 1.0
_LOOKUPS = 4  # at once, of usage records
_LOOKUP_LIMIT_S = 2.0

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Socket(Held, Protocol):
    """A WebSocket with requests of its own."""

    def stop(self) -> None: ...


class Gateway:
    """Made by `Gateway.start` inside the running event loop, once per process."""

    def __init__(self, settings: Settings, metrics: Metrics, spool: UsageSpool) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.metrics = metrics
        self.spool = spool
        self.tokenizers = TokenizerStore(settings.weights)
        self.snapshots = SnapshotFeed(settings.database_url, settings.master_keys, self._snapshot_changed)
        self.upstream = Upstream(settings, metrics)
        self.idempotency = IdempotencyStore(settings.database_url, self.upstream.incarnation)
        self.lookups = Connections(settings.database_url, size=_LOOKUPS, limit_s=_LOOKUP_LIMIT_S)
        self.token_log = TokenLog(settings.redis_url, self.upstream.incarnation)
        self.quotas = Quotas(
            settings,
            self.upstream.incarnation,
            metrics,
            LedgerSpend(self.lookups),
            QuotaBounds(answer_timeout_s=settings.limits.quota_answer_s),
        )
        self.bodies = BodyReader(settings.limits, settings.gateway_id)
        self.open_requests = 0  # over HTTP, whatever they ask for
        self.slots = Slots()
        self.is_stopping = False
        self.jobs: set[Job] = set()
        self.served: set[Served] = set()
        self.sockets: set[Socket] = set()
        self.outliving = Outliving(self.token_log, self.jobs)
        self._answers: set[Answer] = set()
        self._conclusions = Conclusions(self.upstream, spool, metrics, self.jobs)
        self._revocation = Revocation(self.served, self.jobs, self.sockets)
        self._watchdog = Watchdog(self.upstream, self.jobs, self._answers, settings.limits, metrics)
        self._tasks: set[asyncio.Task[Any]] = set()
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
            "revocation": gateway._revocation.run,
            "idempotency": gateway.idempotency.run,
            "token log": gateway.token_log.run,
            "quotas": gateway.quotas.run,
            "outliving": gateway.outliving.run,
        }
        for name, run in parts.items():
            gateway.spawn(_forever(name, run))
        return gateway

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that outlives the request that started it."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- what requests ask --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Raises ApiError before the first one."""
        if self.snapshots.current is None:
            limit = LimitDetail(name="snapshot", scope="gateway", subject=self.settings.gateway_id)
            message = "the gateway is starting: it has not read keys and models yet"
            raise overloaded(message, limit=limit)
        return self.snapshots.current

    def key_require(self, grant: KeyGrant) -> None:
        """Of a request that waited since its key was read. Raises ApiError."""
        if not is_live(grant, self.snapshot().grants, datetime.now(UTC)):
            raise revoked()

    def route(self, grant: KeyGrant, slug: str) -> ModelRoute:
        """Raises ApiError."""
        settings, routes = self.settings, self.snapshot().routes
        if not slug or (slug in settings.default_model_aliases and slug not in routes):
            slug = self.default_route().slug
        route = routes.get(slug)
        if route is None:
            raise ApiError("model_not_found", f"the model {slug!r} does not exist", param="model")
        if grant.models is not None and slug not in grant.models:
            raise ApiError("model_not_allowed", f"this API key may not use {slug!r}", param="model")
        return route

    def default_route(self) -> ModelRoute:
        """The default model's, or that of the only model. Raises ApiError."""
        routes, slug = self.snapshot().routes, self.settings.default_model
        if not slug and len(routes) == 1:
            return next(iter(routes.values()))
        if slug not in routes:
            message = "no model was named, and this platform has no default model (SLUICE_DEFAULT_MODEL)"
            raise ApiError("missing_required_parameter", message, param="model")
        return routes[slug]

    def max_context_tokens(self, route: ModelRoute) -> int:
        """The model's context, or less where no replica has the memory for it."""
        servable = [up.max_tokens for up in self.upstream.replicas.ready() if up.digest == route.digest]
        return min(route.max_context_tokens, max(servable)) if servable else route.max_context_tokens

    def missing(self) -> list[str]:
        """What keeps this gateway from serving; empty when it is ready."""
        checks = {
            "snapshot": self.snapshots.current is not None,
            "dispatcher": self.upstream.is_served,
            "worker": bool(self.upstream.replicas.ready()),
            "spool": not self.spool.refusal,
            "quotas": not self.quotas.is_starting,
        }
        return [name for name, is_there in checks.items() if not is_there]

    # -- what is open -------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Raises ApiError when nothing was submitted; what begins to run is always concluded."""
        if self.is_stopping:
            raise stopping()
        self.key_require(job.grant)
        first, *others = job.streams
        self.upstream.submit(first)
        self.jobs.add(job)
        try:
            for stream in others:
                self.upstream.submit(stream)
        except ApiError as error:  # the dispatcher went away in between: what was not submitted never runs
            job.fail(error)
            for stream in others:
                if stream.sid not in self.upstream.streams:
                    stream.settle()

    def conclude(self, job: Job) -> None:
        if not job.has_client:
            self.slots.alone_release(job.grant.key_id)
        self._conclusions.begin(job)

    def outlive(self, job: Job, grace_s: float) -> None:
        """Its client is gone and gives its slot back: from here on the job holds one itself."""
        job.has_client = False
        self.slots.alone_take(job.grant.key_id)
        self.outliving.add(job, grace_s)

    def deliver_begin(self, served: Served) -> None:
        self.served.add(served)
        self._answers.add(served.answer)
        if not is_live(served.grant, self.snapshot().grants, datetime.now(UTC)):
            served.revoke()

    def deliver_end(self, served: Served) -> None:
        self.served.discard(served)
        self._answers.discard(served.answer)
        served.answer.leave()
        served.leave()

    def job_find(self, tenant_id: UUID, request_id: UUID) -> Job | None:
        for job in self.jobs:
            if job.request_id == request_id and job.grant.tenant_id == tenant_id:
                return job
        return None

    def _snapshot_changed(self, snapshot: Snapshot) -> None:
        self.tokenizers.preload({route.digest for route in snapshot.routes.values()})
        self._revocation.changed(snapshot.grants)

    # -- the end of the process ---------------------------------------------------------------------------

    def stop_begin(self) -> None:
        """The server drains: shortly before its limit what still runs is ended with an error. Idempotent."""
        if self._stop_task is None:
            self._stop_task = self.spawn(self._drain())

    async def settled(self) -> None:
        """Returns when all that ran is recorded, or when the time for it is over."""
        await self._conclusions.told(self.limits.settle_s + 1)

    async def close(self) -> None:
        """What runs is ended and recorded first: the parts go last."""
        self._requests_end()
        await asyncio.sleep(0)  # cancelled requests leave
        await self._conclusions.close(self.limits.settle_s + 1)
        await tasks_end(self._tasks)
        await self.quotas.close()
        await self.idempotency.close()
        await self.lookups.close()
        await self.spool.close()

    async def _drain(self) -> None:
        await asyncio.sleep(max(self.limits.drain_s - self.limits.drain_margin_s, 0.0))
        self._requests_end()

    def _requests_end(self) -> None:
        """The error event comes after the final counts, and before the server's limit."""
        self.is_stopping = True
        for job in list(self.jobs):
            job.fail(stopping())
        for served in list(self.served):
            if not served.is_computed_here:
                served.answer.break_off(stopping())
        for socket in list(self.sockets):
            socket.stop()
        asyncio.get_running_loop().call_later(self.limits.drain_margin_s / 2, self._streams_settle)

    def _streams_settle(self) -> None:
        for stream in list(self.upstream.streams.values()):
            stream.settle()

    def measure(self) -> None:
        """Refresh the gauges before a scrape."""
        metrics, upstream = self.metrics, self.upstream
        metrics.open_requests.set(self.open_requests)
        metrics.open_sockets.set(len(self.sockets))
        metrics.open_streams.set(len(upstream.streams))
        metrics.buffered_body_bytes.set(self.bodies.buffered_bytes)
        metrics.tasks.set(len(asyncio.all_tasks()))
        metrics.workers.set(len(upstream.replicas.ready()))
        metrics.replicas_known.set(upstream.replicas.known)
        metrics.dispatcher_connected.set(upstream.dispatcher.is_ready)
        if snapshot := self.snapshots.current:
            metrics.snapshot_age.set(time.monotonic() - snapshot.loaded_at)
            metrics.routes_age.set(time.monotonic() - self.snapshots.known_at)
            for slug, route in snapshot.routes.items():
                metrics.degradation.labels(slug).set(upstream.pressure.level(route.digest))
        self.spool.measure()


async def _forever(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A part's own error handling comes first; what escapes it is a defect, logged, and the part goes on."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("gateway part %s failed, starting it again", name)
        await asyncio.sleep(_RESTART_S)
