"""The quotas of all tenants on this gateway: a request reserves, the store is told in the background.

The common path asks nobody: it takes from leases. While the store is down this gateway grants its own share
of every limit; what that was is settled afterwards.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from itertools import count
from uuid import UUID

from gateway.errors import ApiError
from gateway.http.exchange import HeaderList
from gateway.metrics import Metrics
from gateway.quotas.account_set import UNBOUND, AccountSet
from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.demand import Demand
from gateway.quotas.exchange import NotTaken
from gateway.quotas.headers import headers_of
from gateway.quotas.ledger import Ledger, LedgerAway, SpendSince
from gateway.quotas.metrics import QuotaMetrics
from gateway.quotas.refusals import batch_refused, exceeds, ledger_away, refused, store_refused
from gateway.quotas.reservation import Reservation
from gateway.quotas.store import QuotaStore, StoreAway, StoreRefused, now_ms, unix_ms
from gateway.quotas.tenant import TenantQuota
from gateway.settings import Settings
from policy.output_estimate import OutputEstimates
from policy.store_state import State, StateChange
from tenants.contracts import KeyGrant

__all__ = ["Demand", "Quotas", "Reservation"]

_AT_ONCE = 16  # tenants whose accounts are settled
_CLOSE_S = 1.0

logger = logging.getLogger(__name__)


class Quotas:
    """`incarnation` is this process's; no other process may ever have the same. Made in the event loop."""

    def __init__(
        self,
        settings: Settings,
        incarnation: str,
        metrics: Metrics,
        spend_since: SpendSince | None = None,
        bounds: QuotaBounds | None = None,
    ) -> None:
        self._bounds = bounds or QuotaBounds()
        self._incarnation = incarnation
        self._metrics = QuotaMetrics(metrics.registry)
        self._store = QuotaStore(
            settings.quota_url or settings.redis_url,
            incarnation,
            self._bounds,
            self._state_changed,
            self._returned,
            self._store_lost,
        )
        self._ledger = Ledger(spend_since, self._store, self._bounds)
        self._estimates = OutputEstimates()
        self._chance = random.Random()  # noqa: S311
        self._tenants: dict[UUID, TenantQuota] = {}
        self._names = count(1)
        self._dirty: dict[TenantQuota, None] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._store.run())
            parts.create_task(self._exchange_forever())
            parts.create_task(self._tick_forever())

    async def close(self) -> None:
        """What is leased goes back, as far as the store answers within a second."""
        for tenant in self._tenants.values():
            tenant.surrender()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._exchange(list(self._tenants.values()))
        except TimeoutError:
            logger.warning("quotas: not everything that was leased was given back")
        await self._store.close()

    # -- requests -----------------------------------------------------------------------------------------

    async def reserve(self, demand: Demand) -> Reservation:
        """All of it or nothing. Raises ApiError. Of a reservation, `settle` or `cancel` must be called."""
        expected = self._expected(demand)
        if not demand.grant.quotas:
            return self._reservation(demand, UNBOUND, [], [], expected)
        tenant = self._tenant(demand.grant.tenant_id)
        account_set = tenant.sets.get(demand.grant, demand.model, unix_ms())
        held, amounts = account_set.amounts(demand, expected)
        for account, amount in zip(held, amounts, strict=True):
            if amount > account.lease.cap:
                raise exceeds(account, amount)
        if held:
            try:
                await self._take(tenant, demand.klass, held, amounts)
            except ApiError as error:
                error.headers += self._headers(account_set)
                raise
            except StoreRefused as error:
                self._metrics.unreadable.inc()
                raise store_refused(demand.grant.tenant_name) from error
            if tenant.is_low(held):
                self._told_soon(tenant)
        return self._reservation(demand, account_set, held, amounts, expected)

    def _reservation(
        self,
        demand: Demand,
        account_set: AccountSet,
        held: list[Account],
        amounts: list[int],
        expected: int,
    ) -> Reservation:
        return Reservation(
            demand,
            account_set,
            held,
            amounts,
            expected_tokens=expected,
            step=self._bounds.top_up_tokens,
            on_end=self._ended,
        )

    def expected_tokens(self, tenant_id: UUID, model: str, max_tokens: int) -> int:
        """Of the output of one answer, as learned."""
        return self._estimates.expected(tenant_id, model, max_tokens)

    def is_output_known(self, tenant_id: UUID, model: str) -> bool:
        """Whether `expected_tokens` was learned, or is only what may be."""
        return self._estimates.is_known(tenant_id, model)

    def headers(self, grant: KeyGrant, model: str = "") -> HeaderList:
        """Of a response that reserved nothing."""
        if not grant.quotas:
            return []
        return self._headers(self._tenant(grant.tenant_id).sets.get(grant, model, unix_ms()))

    def _headers(self, account_set: AccountSet) -> HeaderList:
        accounts = account_set.accounts
        return headers_of(
            [accounts[at] for at in account_set.tokens], [accounts[at] for at in account_set.requests]
        )

    async def _take(self, tenant: TenantQuota, klass: str, held: list[Account], amounts: list[int]) -> None:
        try:
            if not self._store.is_down:
                if tenant.take_now(held, amounts, now_ms()):
                    return
                try:
                    self._metrics.synchronous.inc()
                    await tenant.take(held, amounts)
                except StoreAway:
                    logger.debug("quotas: this gateway grants by itself")
                else:
                    return
            if not self._store.serves(klass):
                raise batch_refused()
            tenant.take_local(held, amounts, now_ms())
            self._metrics.local.inc()
        except NotTaken as error:
            for short in error.shorts:
                limit = short.account.limit
                self._metrics.refusals.labels(limit.name, limit.scope).inc()
            raise refused(error.shorts, self._chance, is_store_down=self._store.is_down) from None
        except LedgerAway as error:
            raise ledger_away(str(error), error.wait_ms) from error

    def _expected(self, demand: Demand) -> int:
        """Output tokens of all answers together."""
        each = -(-demand.max_tokens // max(1, demand.answers))
        expected = self._estimates.expected(demand.grant.tenant_id, demand.model, each)
        return min(demand.max_tokens, expected * demand.answers)

    def _ended(self, demand: Demand, held: Sequence[Account], output_tokens: int | None) -> None:
        tenant_id = demand.grant.tenant_id
        if output_tokens is not None and not demand.is_shortened:
            each = output_tokens // max(1, demand.answers)
            self._estimates.observe(tenant_id, demand.model, each)
        tenant = self._tenants.get(tenant_id)
        if tenant is not None and tenant.is_low(held):
            self._told_soon(tenant)

    def _tenant(self, tenant_id: UUID) -> TenantQuota:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            name = f"{self._incarnation}.{next(self._names)}"
            tenant = TenantQuota(tenant_id, name, self._store, self._ledger, self._bounds)
            self._tenants[tenant_id] = tenant
        return tenant

    @property
    def is_starting(self) -> bool:
        """Tenants with budgets would be refused: what they spent is not known yet."""
        return self._store.is_starting

    # -- in the background --------------------------------------------------------------------------------

    def _told_soon(self, tenant: TenantQuota) -> None:
        self._dirty[tenant] = None
        self._wake.set()

    async def _exchange_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._store.is_down:
                self._dirty.clear()  # all are told when it is back
            some = [tenant for tenant in self._dirty if not tenant.is_busy]
            for tenant in some:
                del self._dirty[tenant]
            await self._exchange(some)
            await asyncio.sleep(self._bounds.exchange_s)
            if self._dirty:
                self._wake.set()

    async def _exchange(self, tenants: list[TenantQuota]) -> None:
        for first in range(0, len(tenants), _AT_ONCE):
            asking = [tenant.exchange() for tenant in tenants[first : first + _AT_ONCE]]
            for outcome in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, StoreAway):
                    logger.error("quotas: a tenant could not be settled", exc_info=outcome)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._bounds.expiry_s)
            now = now_ms()
            for at, (tenant_id, tenant) in enumerate(list(self._tenants.items())):
                if at % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # tokens go first
                if tenant.tick(now):
                    self._told_soon(tenant)
                elif tenant.is_forgettable(now):
                    del self._tenants[tenant_id]
            self._metrics.gateways.set(self._store.gateways)
            self._metrics.tenants.set(len(self._tenants))

    # -- what happens to the store ------------------------------------------------------------------------

    def _state_changed(self, change: StateChange) -> None:
        self._metrics.state_set(change.after)
        if change.after is State.OK:
            logger.warning("quotas: the store is back after %d ms", change.down_ms)
            for tenant in self._tenants.values():  # a replica that took over may lack the last calls
                tenant.force()
            return
        logger.critical(
            "quotas: ALERT the store has been down for %d ms, this gateway is %s",
            change.down_ms,
            change.after,
        )
        if change.after is State.TIGHT:
            for tenant in self._tenants.values():
                tenant.tighten()

    def _returned(self) -> None:
        """After one failed call, or an outage."""
        for tenant in self._tenants.values():
            self._told_soon(tenant)

    def _store_lost(self) -> None:
        logger.critical("quotas: ALERT the store has lost its data: usage is reported again")
        self._metrics.losses.inc()
        for tenant in self._tenants.values():
            tenant.force()
            self._told_soon(tenant)
