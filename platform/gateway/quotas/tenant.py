"""One tenant on this gateway: what requests take, from leases, from the store, or while that is down.

Taking is one turn of the event loop: all limits are looked at, then all are taken, or nothing is. Not here:
what a refusal is called (`gateway.quotas.refusals`), and when the store is told (`gateway.quotas.quotas`).
"""

import asyncio
from collections.abc import Collection, Sequence
from uuid import UUID

from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.exchange import Exchange, NotTaken, Short
from gateway.quotas.ledger import Ledger
from gateway.quotas.store import QuotaStore, StoreAway, now_ms
from policy.lease import LOW_WATER
from policy.reserve_all import reserve_all


class TenantQuota:
    """`name` is this gateway's for this tenant in the store, and never used again."""

    def __init__(
        self, tenant_id: UUID, name: str, store: QuotaStore, ledger: Ledger, bounds: QuotaBounds
    ) -> None:
        self._store = store
        self._bounds = bounds
        self._exchange = Exchange(tenant_id, name, store, ledger, bounds)
        self.sets = self._exchange.sets
        self._lock = asyncio.Lock()
        self._local_since_ms: int | None = None
        self._used_ms = now_ms()

    @property
    def _accounts(self) -> Collection[Account]:
        return self.sets.accounts.values()

    # -- requests -----------------------------------------------------------------------------------------

    def take_now(self, accounts: Sequence[Account], amounts: Sequence[int], now: int) -> bool:
        """From what is here; False: nothing was taken. The common path."""
        if self._local_since_ms is not None:
            self._local_end(now)
        if not reserve_all([account.lease for account in accounts], amounts, now):
            return False
        self._used_ms = now
        return True

    async def take(self, accounts: Sequence[Account], amounts: Sequence[int]) -> None:
        """Asks the store for what is not here. Raises NotTaken, StoreAway, LedgerAway: nothing is taken.

        A call that fails is sent again until the store is known to be down: after five in a row.
        """
        _refuse_known(list(zip(accounts, amounts, strict=True)), now_ms())
        async with self._lock:
            while not await self._is_taken(accounts, amounts):
                pass

    async def _is_taken(self, accounts: Sequence[Account], amounts: Sequence[int]) -> bool:
        """False: try again."""
        now = now_ms()
        if self.take_now(accounts, amounts, now):
            return True
        pairs = list(zip(accounts, amounts, strict=True))
        _refuse_known(pairs, now)
        try:
            await self._exchange.clear()
            if any(account.lease.returning < 0 or account.lease.is_lowered for account in accounts):
                await self._exchange.settle()  # what is owed, or not the tenant's any more
            # What is here in part is set aside: the store is asked for the rest.
            for account, amount in pairs:
                _set_aside(account, amount)
            asked = [(account, amount - account.aside) for account, amount in pairs if account.aside < amount]
            if asked:
                await self._exchange.reserve_known(asked)
        except BaseException as error:
            for account in accounts:
                account.lease.returning += account.aside
                account.aside = 0
            if isinstance(error, NotTaken):
                raise NotTaken([_refused(short, pairs, now) for short in error.shorts]) from None
            if isinstance(error, StoreAway) and not self._store.is_down:
                return False
            raise
        for account, amount in pairs:
            account.lease.left -= amount - account.aside
            account.aside = 0
            account.lease.returning += amount
            account.lease.borrow(amount, now)
        self._used_ms = now
        return True

    def take_local(self, accounts: Sequence[Account], amounts: Sequence[int], now: int) -> None:
        """While the store is down: this gateway's share. Raises NotTaken."""
        if self._local_since_ms is None:
            self._local_since_ms = now
        for account in accounts:
            if not account.is_local:
                account.local_begin(self._store.gateways, now)
                if self._store.is_tight:
                    account.local_tighten(now)
        pairs = list(zip(accounts, amounts, strict=True))
        shorts = [
            Short(account, amount, account.local_wait_ms(amount, now))
            for account, amount in pairs
            if not account.local_has(amount, now)
        ]
        if shorts:
            raise NotTaken(shorts)
        for account, amount in pairs:
            account.local_take(amount, now)
        self._used_ms = now

    def tighten(self) -> None:
        """The outage lasts."""
        for account in self._accounts:
            if account.is_local:
                account.local_tighten(now_ms())

    # -- the store ----------------------------------------------------------------------------------------

    async def exchange(self) -> None:
        """Tells the store what is owed and given back, and asks for more where leases run low.

        Raises StoreAway.
        """
        async with self._lock:
            self._local_end(now_ms())
            await self._exchange.clear()
            await self._exchange.settle()
            if self._exchange.is_ending:
                return
            await self._exchange.refill()

    @property
    def is_busy(self) -> bool:
        """A call is under way."""
        return self._lock.locked()

    def is_low(self, accounts: Sequence[Account]) -> bool:
        """Whether the store should be asked, or told, soon."""
        return any(
            account.lease.returning or account.lease.left < LOW_WATER * account.lease.size
            for account in accounts
        )

    def tick(self, now: int) -> bool:
        """Whether there is something to tell the store. Twice a second."""
        self.sets.forget_over()
        is_due = not self._exchange.is_clear or self._exchange.is_forced
        for account in self._accounts:
            account.sample(now)
            account.lease.expire(now)
            is_due |= bool(account.lease.returning) or account.is_due(now)
        return is_due

    def force(self) -> None:
        """The next exchange says where every account stands: the store may have lost it."""
        self._exchange.is_forced = True

    def surrender(self) -> None:
        """The gateway ends: nothing is kept for later."""
        self._exchange.is_forced = self._exchange.is_ending = True

    def is_forgettable(self, now: int) -> bool:
        """Nothing is held, nothing is in doubt, and nothing was asked for a while."""
        if now - self._used_ms < self._bounds.idle_s * 1000 or self.is_busy:
            return False
        return self._exchange.is_clear and all(account.is_idle for account in self._accounts)

    # -- what happens to the store ------------------------------------------------------------------------

    def _local_end(self, now: int) -> None:
        if self._local_since_ms is None or self._store.is_down:
            return
        self._exchange.away_ms += now - self._local_since_ms
        self._local_since_ms = None
        for account in self._accounts:
            account.local_end()


def _refused(short: Short, pairs: Sequence[tuple[Account, int]], now: int) -> Short:
    """Of the whole amount, not only of what was missing here; for a moment the store is not asked again."""
    account = short.account
    (amount,) = [amount for other, amount in pairs if other is account]
    account.lease.refused(short.amount, short.wait_ms or 0, now)
    return Short(account, amount, short.wait_ms)


def _refuse_known(pairs: Sequence[tuple[Account, int]], now: int) -> None:
    """By what the store said a moment ago, without asking it. Raises NotTaken."""
    refusals = [
        Short(account, amount, wait_ms)
        for account, amount in pairs
        if (here := _here(account)) < amount and (wait_ms := account.lease.refused_ms(amount - here, now)) > 0
    ]
    if refusals:
        raise NotTaken(refusals)


def _here(account: Account) -> int:
    return account.lease.left + max(0, account.lease.returning)


def _set_aside(account: Account, amount: int) -> None:
    """Up to the amount, of the lease and of what is on its way back: nobody else takes it meanwhile."""
    lease = account.lease
    of_lease = min(amount, lease.left)
    of_returning = min(amount - of_lease, max(0, lease.returning))
    lease.left -= of_lease
    lease.returning -= of_returning
    account.aside = of_lease + of_returning
