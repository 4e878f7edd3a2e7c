"""One tenant's accounts on this gateway: what requests take and give back, what the store is asked and told.

Taking is one turn of the event loop: all limits are looked at, then all are taken, or nothing is. Not here:
what a refusal is called (`gateway.quotas.refusals`), and when the store is told (`gateway.quotas.quotas`).
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.quotas.account_set import AccountSets
from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.ledger import Ledger
from gateway.quotas.link import Link, Reply
from gateway.quotas.scripts import RESERVE, SETTLE
from gateway.quotas.spend import SpendAccount
from gateway.quotas.store import Arg, QuotaStore, StoreAway, now_ms
from policy.lease import LOW_WATER
from policy.lease_book import LeaseBook, Settlement
from policy.reserve_all import reserve_all

_NO_BASE = -1


@dataclass(frozen=True, slots=True)
class Short:
    """A limit without room for what was asked; `wait_ms` is None where waiting does not help for now."""

    account: Account
    amount: int
    wait_ms: int | None


class NotTaken(Exception):
    """Nothing was taken, because of these."""

    def __init__(self, shorts: Collection[Short]) -> None:
        super().__init__(", ".join(short.account.limit.name for short in shorts))
        self.shorts = list(shorts)


class TenantQuota:
    """`name` is this gateway's for this tenant in the store, and never used again."""

    def __init__(
        self, tenant_id: UUID, name: str, store: QuotaStore, ledger: Ledger, bounds: QuotaBounds
    ) -> None:
        self.tenant_id = tenant_id
        self._store = store
        self._ledger = ledger
        self._bounds = bounds
        self._book: LeaseBook[bytes] = LeaseBook()
        self._link = Link(store, tenant_id, name, self._lost)
        self.sets = AccountSets(self._book, self._link.key, bounds)
        self._lock = asyncio.Lock()
        self._local_since_ms: int | None = None
        self._away_ms = 0  # that the next settlement accounts for
        self._is_ending = False
        self._is_forced = False  # to say where it stands, though nothing changed
        self.used_ms = now_ms()

    @property
    def _accounts(self) -> Collection[Account]:
        return self.sets.accounts.values()

    # -- requests -----------------------------------------------------------------------------------------

    def take_now(self, accounts: Sequence[Account], amounts: Sequence[int], now: int) -> bool:
        """From what is here; False: nothing was taken. The common path."""
        if self._local_since_ms is not None:
            self._local_end(now)
        if reserve_all([account.lease for account in accounts], amounts, now) is not None:
            return False
        self.used_ms = now
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
            await self._link.clear()
            if any(account.lease.returning < 0 for account in accounts):
                await self._settle()  # what is owed comes first
            # What is here in part is set aside: the store is asked for the rest.
            for account, amount in pairs:
                _set_aside(account, amount)
            asked = [(account, amount - account.aside) for account, amount in pairs if account.aside < amount]
            if asked:
                await self._reserve_known(asked)
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
        self.used_ms = now
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
        self.used_ms = now

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
            await self._link.clear()
            await self._settle()
            if self._is_ending:
                return
            now = now_ms()
            wanted = self._book.refill_begin(self._store.gateways, now)
            if not wanted:
                return
            try:
                await self._reserve([(self.sets.accounts[key], 0, amount) for key, amount in wanted.items()])
            finally:
                self._book.refill_end()

    def is_low(self, accounts: Sequence[Account]) -> bool:
        """Whether the store should be asked, or told, soon."""
        return any(
            account.lease.returning or account.lease.left < LOW_WATER * account.lease.size
            for account in accounts
        )

    def tick(self, now: int) -> bool:
        """Whether there is something to tell the store. Twice a second."""
        self.sets.forget_over()
        is_due = not self._link.is_clear or self._is_forced
        for account in self._accounts:
            account.sample(now)
            account.lease.expire(now)
            is_due |= bool(account.lease.returning) or account.is_due(now)
        return is_due

    def force(self) -> None:
        """The next exchange says where every account stands: the store may have lost it."""
        self._is_forced = True

    def surrender(self) -> None:
        """The gateway ends: nothing is kept for later."""
        self._is_forced = self._is_ending = True

    def is_forgettable(self, now: int) -> bool:
        """Nothing is held, nothing is in doubt, and nothing was asked for a while."""
        if now - self.used_ms < self._bounds.idle_s * 1000 or self._lock.locked():
            return False
        return self._link.is_clear and all(account.is_idle for account in self._accounts)

    # -- calls --------------------------------------------------------------------------------------------

    async def _reserve_known(self, asked: Sequence[tuple[Account, int]]) -> None:
        """Raises NotTaken, StoreAway, LedgerAway."""
        wants = [(account, amount, self._want(account, amount)) for account, amount in asked]
        unknown = await self._reserve(wants)
        if unknown:
            for account in unknown:
                account.base = await self._ledger.base(self.tenant_id, account.limit, account.period)
            await self._settle(unknown)
            wants = [(account, amount, amount) for account, amount in asked]
            if await self._reserve(wants):
                raise StoreAway("the store forgot a budget at once")

    def _want(self, account: Account, amount: int) -> int:
        """With what a lease should hold, as long as others find something, too."""
        lease = account.lease
        ahead = lease.refill_amount(self._store.gateways, now_ms())
        if lease.store_left is not None:
            ahead = min(ahead, max(0, lease.store_left - amount) // (2 * self._store.gateways))
        return amount + ahead

    async def _reserve(self, wants: Sequence[tuple[Account, int, int]]) -> list[SpendAccount]:
        """Of (account, need, want). The accounts whose base is missing. Raises NotTaken, StoreAway."""
        shorts: list[Short] = []
        unknown: list[SpendAccount] = []

        def apply(reply: Reply, asked_ms: int) -> None:
            status = reply[0]
            for at, (account, need, _) in enumerate(wants):
                amount, left, wait_ms, given = reply[1 + 4 * at : 5 + 4 * at]
                if isinstance(account, SpendAccount) and given == _NO_BASE:
                    unknown.append(account)
                elif status == 1:
                    account.granted(amount, left, given, self._store.gateways, asked_ms)
                else:
                    account.lease.heard(left, asked_ms)
                    if left < need:
                        shorts.append(Short(account, need, account.wait_ms(wait_ms, asked_ms)))

        keys = [account.key for account, _, _ in wants]
        arguments: list[Arg] = []
        for account, need, want in wants:
            arguments += account.reserve_arguments(want, need)
        await self._link.call(RESERVE, keys, arguments, apply)
        if shorts and not unknown:
            raise NotTaken(shorts)
        return unknown

    async def _settle(self, told: Sequence[Account] = ()) -> None:
        """What leases return or owe, and where accounts stand. Raises StoreAway."""
        now = now_ms()
        if self._is_ending:
            for account in self._accounts:
                account.lease.surrender()
                account.is_ending = True
        settlement = self._book.settlement(now)
        deltas = dict(settlement.deltas) if settlement else {}
        some = [
            account
            for account in self._accounts
            if account.key in deltas or account in told or account.is_due(now) or self._is_forced
        ]
        if not some:
            return
        self._is_forced = False
        away_ms, self._away_ms = self._away_ms, 0
        arguments: list[Arg] = []
        for account in some:
            arguments += account.settle_arguments(deltas.get(account.key, 0), away_ms, now)

        def apply(reply: Reply, asked_ms: int) -> None:
            self._settled(some, settlement, reply, asked_ms)

        await self._link.call(SETTLE, [account.key for account in some], arguments, apply)

    def _settled(
        self, some: Sequence[Account], settlement: Settlement[bytes] | None, reply: Reply, asked_ms: int
    ) -> None:
        unpaid: dict[bytes, int] = {}
        for at, account in enumerate(some):
            left, owed = reply[1 + 2 * at : 3 + 2 * at]
            if owed:
                unpaid[account.key] = owed
            account.settled(left, asked_ms)
        if settlement is not None:
            self._book.settled(settlement.sequence, unpaid)

    # -- what happens to the store ------------------------------------------------------------------------

    def _local_end(self, now: int) -> None:
        if self._local_since_ms is None or self._store.is_down:
            return
        self._away_ms += now - self._local_since_ms
        self._local_since_ms = None
        for account in self._accounts:
            account.local_end()

    def _lost(self) -> None:
        """The store has forgotten this tenant: it is told again what was used lately, and what is held."""
        kept = {account: account.lease.left for account in self._accounts if account.keeps_grants}
        self._book.forget_grants()
        for account in self._accounts:
            account.lease.left = kept.get(account, 0)
            account.lost()
        self._is_forced = True


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
