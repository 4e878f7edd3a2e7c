"""The gateway's quotas on a real Valkey: warm decisions within the limits, refusals at ten times of one."""

import asyncio
import random
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import uvloop

from bench.limits.timing import Durations, Stopwatch
from billing.contracts import Price
from devservices.valkey import ValkeyServer
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.quotas.quotas import Demand, Quotas, Reservation
from gateway.settings import Settings
from tenants.contracts import QUOTAS_WITH_BURST, KeyGrant, QuotaLimit

MODEL = "model"
PRICE = Price(1, MODEL, 100_000, 10_000, 400_000)
LIMITS = {  # of a large tenant: 1,000 requests a second stay below half of each
    "tokens_per_minute": 120_000_000,
    "requests_per_minute": 240_000,
    "concurrent_requests": 20_000,
    "spend_per_day": 10**12,
    "spend_per_month": 10**13,
}
MAX_TOKENS = 1024
PER_SECOND = 1_000
RUN_S = 0.2
OVERLOAD = 10
READY_S = 15.0
DECISION_BOUND_US = 50.0
REFUSAL_BOUND_US = 1_000.0


class Tenant:
    """Asks for quota as the gateway does; every request runs for `RUN_S`."""

    def __init__(self, quotas: Quotas, limits: dict[str, int], *, seed: int, scarce: str = "") -> None:
        """`scarce`: the limit that is a second's worth at most, so that it is used up at once."""
        self._quotas = quotas
        self._rng = random.Random(seed)
        quota = tuple(
            QuotaLimit(name, "tenant", "bench", limit, burst=limit // 60 if name == scarce else None)
            for name, limit in limits.items()
        )
        self._grant = KeyGrant(
            key_id=uuid4(),
            public_id="bench000",
            digest=b"",
            tenant_id=uuid4(),
            tenant_name="bench",
            scopes=frozenset(),
            models=None,
            expires_at=None,
            data_key=bytes(32),
            quotas=quota,
        )
        self._running: deque[tuple[Reservation, int, float]] = deque()
        self.refusals: dict[str, int] = {}

    async def ask(self, admitted: Durations | None, refused: Durations | None) -> None:
        prompt_tokens = self._rng.randint(50, 800)
        demand = Demand(self._grant, MODEL, prompt_tokens, MAX_TOKENS, "interactive", PRICE)
        watch = Stopwatch()
        try:
            reservation = await self._quotas.reserve(demand)
        except ApiError as error:
            if refused is not None:
                refused.add(watch.read()[0])  # it may have waited for the store
            self.refusals[error.code] = self.refusals.get(error.code, 0) + 1
            return
        if admitted is not None:
            admitted.add(*watch.read())
        self._running.append((reservation, prompt_tokens, time.perf_counter() + RUN_S))

    def end(self, until: float, ended: Durations | None) -> None:
        """The requests that are over by then."""
        while self._running and self._running[0][2] <= until:
            reservation, prompt_tokens, _ = self._running.popleft()
            output_tokens = self._rng.randint(16, 400)
            watch = Stopwatch()
            reservation.settle(
                prompt_tokens=prompt_tokens,
                cached_tokens=0,
                output_tokens=output_tokens,
                cost_micro_usd=prompt_tokens // 10 + output_tokens * 4 // 10,
            )
            if ended is not None:
                ended.add(*watch.read())


async def _nothing_spent(tenant_id: UUID, since: datetime, *, key_id: UUID | None, model: str | None) -> int:
    del tenant_id, since, key_id, model
    return 0


@asynccontextmanager
async def _quotas_started(url: str, metrics: Metrics) -> AsyncIterator[Quotas]:
    nowhere = Path("/nonexistent")
    settings = Settings(
        gateway_id="bench",
        dispatch_address="",
        wire_secret="",
        key_pepper=b"",
        master_keys=(),
        database_url="",
        redis_url=url,
        weights=nowhere,
        spool=nowhere,
    )
    quotas = Quotas(settings, uuid4().hex, metrics, _nothing_spent)
    running = asyncio.create_task(quotas.run())
    try:
        yield quotas
    finally:
        running.cancel()
        await asyncio.wait({running})
        await quotas.close()


async def _ready(quotas: Quotas) -> None:
    """A new store first lets every gateway report what it has spent. Raises TimeoutError."""
    tenant, deadline = Tenant(quotas, LIMITS, seed=0), time.monotonic() + READY_S
    while True:
        before = sum(tenant.refusals.values())
        await tenant.ask(None, None)
        if sum(tenant.refusals.values()) == before:
            tenant.end(inf, None)
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no request was admitted within {READY_S:.0f} s: {tenant.refusals}")
        await asyncio.sleep(0.1)


def _synchronous(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("sluice_gateway_quota_synchronous_total") or 0.0


async def _warm(quotas: Quotas, metrics: Metrics, calls: int) -> list[dict[str, Any]]:
    """Requests come evenly and one after another, within every limit."""
    tenant = Tenant(quotas, LIMITS, seed=1)
    decision = Durations("gateway: reserve of 5 limits, warm lease", DECISION_BOUND_US)
    settlement = Durations("gateway: settle of 5 limits", DECISION_BOUND_US)
    warming = 2 * PER_SECOND
    asked, begun = 0.0, time.perf_counter()
    for call in range(warming + calls):
        is_warm = call >= warming
        if call == warming:
            asked = _synchronous(metrics)
        await _until(begun + call / PER_SECOND)
        await tenant.ask(decision if is_warm else None, None)
        tenant.end(time.perf_counter(), settlement if is_warm else None)
    asked = _synchronous(metrics) - asked
    tenant.end(inf, None)
    if tenant.refusals:
        raise RuntimeError(f"the bench was refused: {tenant.refusals}")
    return [decision.row(f"{100 * asked / calls:.2f}% asked the store"), settlement.row()]


async def _overloaded(quotas: Quotas, calls: int, limit: str, allowed: int) -> dict[str, Any]:
    """`limit` allows a tenth of what is offered; nobody waits for another request."""
    scarce = limit if limit in QUOTAS_WITH_BURST else ""
    tenant = Tenant(quotas, LIMITS | {limit: allowed}, seed=2, scarce=scarce)
    refusal = Durations(f"gateway: refused by {limit}, {OVERLOAD}x", REFUSAL_BOUND_US)
    begun = time.perf_counter()
    asking: set[asyncio.Task[None]] = set()
    for call in range(calls):
        await _until(begun + call / PER_SECOND)
        task = asyncio.create_task(tenant.ask(None, refusal))
        asking.add(task)
        task.add_done_callback(asking.discard)
        tenant.end(time.perf_counter(), None)
    await asyncio.gather(*asking)
    tenant.end(inf, None)
    return refusal.row(", ".join(f"{100 * n / calls:.0f}% {code}" for code, n in tenant.refusals.items()))


async def _until(moment: float) -> None:
    """Later than asked by a timer's tick at most; what is late is made up for."""
    wait_s = moment - time.perf_counter()
    await asyncio.sleep(max(0.0, wait_s))


async def _measure(url: str, calls: int) -> list[dict[str, Any]]:
    metrics = Metrics()
    async with _quotas_started(url, metrics) as quotas:
        await _ready(quotas)
        rows = await _warm(quotas, metrics, calls)
        overloads = {
            "tokens_per_minute": PER_SECOND * 60 * 600 // OVERLOAD,
            "requests_per_minute": PER_SECOND * 60 // OVERLOAD,
            "concurrent_requests": int(PER_SECOND * RUN_S) // OVERLOAD,
        }
        for limit, allowed in overloads.items():
            rows.append(await _overloaded(quotas, calls, limit, allowed))
        return rows


def gateway_measure(calls: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as folder:
        server = ValkeyServer.start(Path(folder), durable=False)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_measure(server.url, calls))
        finally:
            server.stop()
