"""The worker process: takes rows from the dispatcher, runs them on its backend, streams to gateways.

One event loop owns everything here; the backend computes elsewhere and calls back on the loop. Rows keep
running while the dispatcher is away; they end when their gateway is.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gpuworker.backends.base import Backend, BackendStep
from gpuworker.dispatch_link import DispatchLink
from gpuworker.engine.stats import EngineStats
from gpuworker.fleet_shares import FleetShares
from gpuworker.listener import Listener
from gpuworker.load_report import LoadReport
from gpuworker.outbox import Outboxes
from gpuworker.row_table import RowTable
from gpuworker.usage_journal import UsageJournal, WorkerIdentity
from gpuworker.wire.connection import Connection
from gpuworker.wire.messages import (
    HEARTBEAT_MS,
    PROTOCOL_VERSION,
    AnyMessage,
    CancelRow,
    Capacity,
    Collect,
    Collected,
    Frame,
    GatewayGone,
    Hello,
    Refused,
    RowKey,
    Run,
    Shares,
)
from gpuworker.wire.tls import WireTls

CANCEL_REASONS = ("cancelled", "deadline", "error", "moved")
HANG_EXIT_S = 30.0  # who hangs for so long is started again
CANCEL_GRACE_S = 5.0  # after the drain: for the step in progress, and the last frames

logger = logging.getLogger(__name__)


class WorkerFailed(Exception):
    """The process cannot go on and must be started again."""


@dataclass(frozen=True, slots=True)
class Settings:
    dispatch: str
    listen: str
    secret: str
    drain_s: float
    serves: str = "both"  # both | prefill | decode
    labels: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()  # names of those that may come; none: any that knows the secret
    tls: WireTls | None = None


class WorkerServer:
    """`serve` runs it. A row is in `_rows` from its acceptance until its end was handed to its outbox."""

    def __init__(
        self, settings: Settings, identity: WorkerIdentity, backend: Backend, usage: UsageJournal
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._backend = backend
        self._usage = usage
        self._report = LoadReport(_before_start(backend.capacity))
        self._report.is_warming = True
        self._rows = RowTable(self._hello(), backend, self._report.given, settings.tls)
        self._outboxes = Outboxes(self._gateway_lost)
        self._listener = Listener(
            settings.secret,
            identity,
            self,
            self._rows.prefills,
            gateways=settings.gateways,
            tls=settings.tls,
        )
        self._shares = FleetShares(identity.digest, backend.yield_also)
        self._link = DispatchLink(
            settings.dispatch,
            self._dispatcher_hello,
            self._joined,
            self._dispatched,
            self._shares.drop,
            lambda: not self._is_hung,
            settings.tls,
        )
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()
        self._unsaid: list[Refused] = []  # of rows that the greeting under way still names
        self._hung_since_ms: float | None = None

    @property
    def _is_hung(self) -> bool:
        return self._hung_since_ms is not None

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`, then drain. Raises WorkerFailed, and OSError when the address is taken."""
        await self._listener.open(self._settings.listen)
        tasks = [asyncio.create_task(self._link.run()), asyncio.create_task(self._beat())]
        stopping = asyncio.create_task(stop.wait())
        try:
            self._report.warmed(await self._backend.start(self._stepped, self._engine_died))
            self._report_send(_now_ms())
            logger.info("serving digest=%s listen=%s", self._identity.digest, self._settings.listen)
            await _first(stopping, self._failed, *tasks)
            if stopping.done() and not self._failed.done():
                await self._drain()
            for task in tasks:
                if task.done():
                    task.result()  # neither ends by itself: this raises
            if self._failed.done():
                raise WorkerFailed(self._failed.result())
        finally:
            stopping.cancel()
            self._rows.close()
            await self._listener.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._backend.stop()

    async def _drain(self) -> None:
        self._rows.is_draining = self._report.is_draining = True
        self._report_send(_now_ms())
        logger.info("draining rows=%d prefills=%d", len(self._rows), self._rows.prefills.rows)
        if await self._settle(self._settings.drain_s):
            return
        logger.warning("drain is over, others get rows=%d", len(self._rows))
        for row in list(self._rows):
            self._rows.cancel(row, "moved")
        self._rows.prefills.give_up("the worker stops")
        await self._settle(CANCEL_GRACE_S)

    async def _settle(self, timeout_s: float) -> bool:
        """Whether every row's end was sent in time."""
        settled = asyncio.create_task(self._settled.wait())
        self._check_settled()
        await _first(settled, self._failed, timeout_s=timeout_s)
        settled.cancel()
        return self._settled.is_set() or self._failed.done()

    def _check_settled(self) -> None:
        if self._rows.is_draining and self._rows.is_empty and self._outboxes.is_settled:
            self._settled.set()

    async def _beat(self) -> None:
        """From the loop, so that a long step does not silence the worker."""
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            now_ms = _now_ms()
            self._outboxes.tick(now_ms)
            self._rows.tick()
            self._shares.tick(now_ms)
            if not self._report.is_warming:  # a first step may take long, and nobody waits for it
                self._hang_look(now_ms)
            self._report_send(now_ms)
            self._check_settled()
            if self._usage.failure:
                self._fail(self._usage.failure)

    def _hang_look(self, now_ms: float) -> None:
        """The dispatcher is told, and gives the rows to others. It may pass, e.g. on a machine that swaps."""
        if not self._backend.is_hung():
            self._hung_since_ms = None
        elif self._hung_since_ms is None:
            logger.error("a step lasts far longer than it can, rows=%d", len(self._rows))
            self._hung_since_ms = now_ms
        elif now_ms - self._hung_since_ms > HANG_EXIT_S * 1000:
            self._fail(f"the engine hangs since {HANG_EXIT_S:.0f} s")

    def _fail(self, cause: str) -> None:
        if not self._failed.done():
            self._failed.set_result(cause)

    # -- dispatcher ---------------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            role="worker",
            id=self._identity.id,
            incarnation=self._identity.incarnation,
            secret=self._settings.secret,
            address=self._settings.listen,
            model=self._identity.model,
            digest=self._identity.digest,
            capacity=self._backend.capacity,
            serves=self._settings.serves,
            labels=list(self._settings.labels),
            kv_dtype=self._backend.kv_dtype,
            epoch=self._identity.epoch,
        )

    def _dispatcher_hello(self) -> Hello:
        self._report.restart(self._rows.prefilled)
        self._unsaid.clear()
        rows = self._rows
        return replace(self._hello(), running=list(rows), choices=rows.choices, flows=rows.flows)

    def _joined(self) -> None:
        for refused in self._unsaid:
            self._link.send(refused)
        self._unsaid.clear()
        self._report_send(_now_ms())

    def _report_send(self, now_ms: float) -> None:
        if self._link.is_joined:
            self._link.send(replace(self._report.take(now_ms), hung=self._is_hung))

    def _dispatched(self, message: AnyMessage) -> None:
        match message:
            case Run(gateway=gateway, submit=submit):
                self._run(RowKey(gateway, submit.sid), message)
            case CancelRow(row=row, reason=reason):
                self.row_cancel(row, reason)
            case GatewayGone(gateway=gateway):
                self._gateway_lost(gateway)
            case Shares():
                self._shares.said(message, _now_ms())
            case _:
                logger.warning("the dispatcher sent %s", type(message).__name__)

    def _run(self, row: RowKey, run: Run) -> None:
        self._report.run_received()
        if row in self._rows:
            return  # said twice
        if problem := self._rows.problem(run):
            self._refuse(row, *problem)
        elif not self._usage.may_admit:
            self._refuse(row, "capacity", "the usage journal is nearly full")
        else:
            self._outboxes.row_add(row, _now_ms())
            self._rows.take(row, run)

    def _refuse(self, row: RowKey, code: str, message: str) -> None:
        logger.warning("refused gateway=%s sid=%d code=%s: %s", row.gateway, row.sid, code, message)
        refused = Refused(row=row, code=code, message=message, digest=self._identity.digest)
        if not self._link.send(refused):
            self._unsaid.append(refused)

    # -- backend ------------------------------------------------------------------------------------------

    def _stepped(self, step: BackendStep) -> None:
        try:
            self._step_take(step)
        except Exception as error:  # e.g. JournalFailed: what is not recorded must not be served
            logger.exception("a step's results could not be taken")
            self._fail(f"{type(error).__name__}: {error}")

    def _step_take(self, step: BackendStep) -> None:
        output, now_ms = step.output, _now_ms()
        for refused in step.refused:
            self._rows.remove(refused.row)
            self._outboxes.row_drop(refused.row)
            self._refuse(refused.row, refused.code, refused.message)
        self._usage.record(output.checkpoints)
        for gateway, columns in output.gateways.items():
            frame = Frame(
                step=output.step,
                sids=columns.sids,
                starts=columns.starts,
                counts=columns.counts,
                texts=columns.texts,
                ends=columns.ends,
                choices=columns.choices,
                logprobs=columns.logprobs,
                prompts=columns.prompts,
                choice_ends=columns.choice_ends,
                ids=columns.ids,
            )
            self._outboxes.send(gateway, frame, now_ms)
        for row in output.prefilled:
            self._rows.prefilled_add(row)
        for row in output.ended:
            self._rows.remove(row)
        self._report.update(step)
        if self._report.has_news:
            self._report_send(now_ms)
        self._check_settled()

    def _engine_died(self, error: BaseException) -> None:
        self._fail(f"the engine died: {type(error).__name__}: {error}")

    # -- visitors -----------------------------------------------------------------------------------------

    def gateway_joined(self, gateway: str, connection: Connection) -> None:
        self._outboxes.attach(gateway, connection)

    def gateway_left(self, gateway: str, connection: Connection) -> None:
        self._outboxes.detach(gateway, connection, _now_ms())

    def row_cancel(self, row: RowKey, reason: str) -> None:
        self._rows.cancel(row, reason if reason in CANCEL_REASONS else "cancelled")

    def row_pause(self, row: RowKey) -> None:
        self._rows.pause(row, True)

    def row_resume(self, row: RowKey) -> None:
        self._rows.pause(row, False)

    def usage_collect(self, request: Collect) -> Collected:
        return self._usage.collect(request)

    def _gateway_lost(self, gateway: str) -> None:
        self._rows.cancel_gateway(gateway, "gateway_lost")


def _before_start(capacity: Capacity) -> EngineStats:
    return EngineStats(
        running=0,
        waiting=0,
        pending_prefill_tokens=0,
        blocks=capacity.blocks,
        free_blocks=capacity.blocks,
        cached_blocks=0,
        step=0,
        step_ms=0.0,
        batch_rows=0,
        paused=0,
        preemptions=0,
        swaps=0,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=0,
    )


async def _first(*futures: "asyncio.Future[Any]", timeout_s: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
