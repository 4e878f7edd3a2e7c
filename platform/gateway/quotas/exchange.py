"""What one tenant's accounts tell the store, and what that grants them. Callers hold the tenant's lock."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.quotas.account_set import AccountSets
from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.ledger import Ledger, LedgerAway
from gateway.quotas.link import Link, Reply
from gateway.quotas.scripts import RESERVE, SETTLE
from gateway.quotas.spend import SpendAccount
from gateway.quotas.store import Arg, QuotaStore, StoreAway, now_ms
from policy.lease_book import LeaseBook, Settlement

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


class Exchange:
    """`sets` are the tenant's accounts; `name` is this gateway's for the tenant, and never used again."""

    def __init__(
        self, tenant_id: UUID, name: str, store: QuotaStore, ledger: Ledger, bounds: QuotaBounds
    ) -> None:
        self._tenant_id = tenant_id
        self._store = store
        self._ledger = ledger
        self._book: LeaseBook[bytes] = LeaseBook()
        self._link = Link(store, tenant_id, name, self._lost)
        self.sets = AccountSets(self._book, self._link.key, bounds)
        self.is_forced = False  # to say where it stands, though nothing changed
        self.is_ending = False  # nothing is kept for later
        self.away_ms = 0  # granted without the store; the next settlement accounts for it
        self._ledger_away: LedgerAway | None = None  # as it was when it was asked last
        self._ledger_again_ms = now_ms()

    @property
    def _accounts(self) -> Collection[Account]:
        return self.sets.accounts.values()

    @property
    def is_clear(self) -> bool:
        """No call is in doubt."""
        return self._link.is_clear

    async def clear(self) -> None:
        """Sends again what was not answered. Raises StoreAway."""
        await self._link.clear()

    async def refill(self) -> None:
        """Where leases run low. Raises StoreAway."""
        wanted = self._book.refill_begin(self._store.gateways, now_ms())
        if not wanted:
            return
        try:
            await self._reserve([(self.sets.accounts[key], 0, amount) for key, amount in wanted.items()])
        finally:
            self._book.refill_end()

    async def reserve_known(self, asked: Sequence[tuple[Account, int]]) -> None:
        """Raises NotTaken, StoreAway, LedgerAway."""
        wants = [(account, amount, self._want(account, amount)) for account, amount in asked]
        unknown = await self._reserve(wants)
        if unknown:
            await self._bases_ask(unknown)
            await self.settle(unknown)
            wants = [(account, amount, amount) for account, amount in asked]
            if await self._reserve(wants):
                raise StoreAway("the store forgot a budget at once")

    async def _bases_ask(self, unknown: Sequence[SpendAccount]) -> None:
        """Of the ledger. When it was away it is not asked again for as long as clients are told to wait:
        whoever waits for this tenant's lock would ask it one after the other.

        Raises LedgerAway, StoreAway.
        """
        if self._ledger_away is not None and (left_ms := self._ledger_again_ms - now_ms()) > 0:
            raise LedgerAway(str(self._ledger_away), left_ms)
        try:
            for account in unknown:
                account.base = await self._ledger.base(self._tenant_id, account.limit, account.period)
        except LedgerAway as error:
            self._ledger_away, self._ledger_again_ms = error, now_ms() + error.wait_ms
            raise
        self._ledger_away = None

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

    async def settle(self, told: Sequence[Account] = ()) -> None:
        """What leases return or owe, and where accounts stand. Raises StoreAway."""
        now = now_ms()
        if self.is_ending:
            for account in self._accounts:
                account.lease.surrender()
                account.is_ending = True
        settlement = self._book.settlement(now)
        deltas = dict(settlement.deltas) if settlement else {}
        some = [
            account
            for account in self._accounts
            if account.key in deltas or account in told or account.is_due(now) or self.is_forced
        ]
        if not some:
            return
        self.is_forced = False
        away_ms, self.away_ms = self.away_ms, 0
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

    def _lost(self) -> None:
        """The store has forgotten this tenant: it is told again what was used lately, and what is held."""
        kept = {account: account.lease.left for account in self._accounts if account.keeps_grants}
        self._book.forget_grants()
        for account in self._accounts:
            account.lease.left = kept.get(account, 0)
            account.lost()
        self.is_forced = True
