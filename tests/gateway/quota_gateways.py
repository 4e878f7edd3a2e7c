"""Gateways' quotas without the rest of a gateway, over a real Valkey."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from redis.asyncio import Redis

from billing.contracts import Price
from gateway.metrics import Metrics
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.quotas import Demand, Quotas, Reservation
from gateway.settings import Settings
from tenants.contracts import KeyGrant, QuotaLimit

# A machine under test is slow now and then: what is not about outages waits longer for its store.
PATIENT = QuotaBounds(answer_timeout_s=2.0, learning_s=0.0)
PRICE = Price(
    version=1,
    model="m",
    prompt_micro_usd_per_mtok=1_000_000,
    cached_micro_usd_per_mtok=100_000,
    output_micro_usd_per_mtok=2_000_000,
)


@dataclass
class Books:
    """The ledger: what it says was spent."""

    micro_usd: int = 0
    asked: list[tuple[UUID, datetime]] = field(default_factory=list)

    async def spend_since(
        self, tenant_id: UUID, since: datetime, *, key_id: UUID | None, model: str | None
    ) -> int:
        self.asked.append((tenant_id, since))
        return self.micro_usd


@asynccontextmanager
async def quotas_started(
    url: str, books: Books | None = None, bounds: QuotaBounds = PATIENT
) -> AsyncIterator[Quotas]:
    """One gateway's. In the end it gives back what it leased."""
    quotas = Quotas(settings(url), uuid4().hex, Metrics(), (books or Books()).spend_since, bounds)
    running = asyncio.create_task(quotas.run())
    try:
        yield quotas
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await quotas.close()


@asynccontextmanager
async def killed_later(
    url: str, books: Books | None = None, bounds: QuotaBounds = PATIENT
) -> AsyncIterator[Quotas]:
    """As after kill -9: it ends and says nothing."""
    quotas = Quotas(settings(url), uuid4().hex, Metrics(), (books or Books()).spend_since, bounds)
    running = asyncio.create_task(quotas.run())
    try:
        yield quotas
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await quotas._store._addressed.close()


def settings(url: str) -> Settings:
    return Settings(
        gateway_id="gateway-0",
        dispatch_address="",
        wire_secret="",
        key_pepper=b"",
        master_keys=(),
        database_url="",
        redis_url=url,
        weights=Path(),
        spool=Path(),
    )


def grant(*quotas: QuotaLimit, tenant_id: UUID | None = None) -> KeyGrant:
    """Of a tenant of its own, where none is given."""
    return KeyGrant(
        key_id=uuid4(),
        public_id="abcdefgh",
        digest=b"",
        tenant_id=tenant_id or uuid4(),
        tenant_name="Ünïcode & Co",
        scopes=frozenset(),
        models=None,
        expires_at=None,
        data_key=b"",
        quotas=quotas,
    )


def limit(name: str, amount: int, **other: Any) -> QuotaLimit:
    return replace(QuotaLimit(name=name, scope="tenant", subject="Ünïcode & Co", limit=amount), **other)


def demand(
    of: KeyGrant, prompt: int = 10, output: int = 0, *, klass: str = "interactive", model: str = "m"
) -> Demand:
    return Demand(grant=of, model=model, prompt_tokens=prompt, max_tokens=output, klass=klass, price=PRICE)


def end(reservation: Reservation, prompt: int = 10, output: int = 0, micro_usd: int = 0) -> None:
    reservation.settle(prompt_tokens=prompt, cached_tokens=0, output_tokens=output, cost_micro_usd=micro_usd)


async def settled(all_quotas: Sequence[Quotas]) -> None:
    """When every gateway has told the store all, and holds no lease."""
    for quotas in all_quotas:
        for tenant in quotas._tenants.values():
            tenant.surrender()
            await tenant.exchange()


async def level_tokens(valkey: Redis, of: KeyGrant, name: str) -> float:
    """Of the tenant's bucket, as it was when the store last wrote it."""
    key = f"sluice:quota:{{{of.tenant_id}}}:{name}:::"
    kept = await valkey.hget(key, "level")
    assert kept is not None
    return int(kept) / 60_000
