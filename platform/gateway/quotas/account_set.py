"""Which accounts a request of one key for one model needs: looked up once, until the quotas change."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from gateway.quotas.accounts import Account
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.buckets import BucketAccount
from gateway.quotas.demand import Demand
from gateway.quotas.slots import SlotAccount
from gateway.quotas.spend import SpendAccount
from gateway.quotas.store import now_ms
from policy.lease import Lease
from policy.lease_book import LeaseBook
from policy.spend import Period, PeriodKind, period_of
from tenants.contracts import (
    CONCURRENT_REQUESTS,
    REQUESTS_PER_MINUTE,
    SPEND_PER_DAY,
    SPEND_PER_MONTH,
    TOKENS_PER_MINUTE,
    KeyGrant,
    QuotaLimit,
)

_MAX_SETS = 4096  # of keys and models of one tenant
_PERIODS: dict[str, PeriodKind] = {SPEND_PER_DAY: "day", SPEND_PER_MONTH: "month"}


@dataclass(frozen=True, slots=True)
class AccountSet:
    quotas: tuple[QuotaLimit, ...]
    accounts: tuple[Account, ...]
    until_unix_ms: int  # the end of the first period of spend
    tokens: tuple[int, ...]  # positions in accounts, by what a request takes of them
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    spends: tuple[int, ...]

    def amounts(self, demand: Demand, expected_tokens: int) -> tuple[list[Account], list[int]]:
        """What of which account; those of which nothing is needed are left out."""
        wanted = (
            (self.tokens, demand.prompt_tokens + expected_tokens),
            (self.requests, demand.requests),
            (self.slots, 1),
            (self.spends, demand.worst_micro_usd if self.spends else 0),
        )
        held: list[Account] = []
        amounts: list[int] = []
        for positions, amount in wanted:
            if amount:
                held += [self.accounts[at] for at in positions]
                amounts += [amount] * len(positions)
        return held, amounts


UNBOUND = AccountSet((), (), 2**62, (), (), (), ())


class AccountSets:
    """Of one tenant. `key` makes a name in the store."""

    def __init__(self, book: LeaseBook[bytes], key: Callable[..., bytes], bounds: QuotaBounds) -> None:
        self.accounts: dict[bytes, Account] = {}
        self._book = book
        self._key = key
        self._bounds = bounds
        self._sets: dict[tuple[UUID, str], AccountSet] = {}

    def get(self, grant: KeyGrant, model: str, unix_ms: int) -> AccountSet:
        found = self._sets.get((grant.key_id, model))
        if found is not None and found.quotas == grant.quotas and unix_ms < found.until_unix_ms:
            return found
        if len(self._sets) >= _MAX_SETS:
            self._sets.clear()
        made = self._sets[grant.key_id, model] = self._make(grant, model, unix_ms)
        return made

    def forget_over(self) -> None:
        """Accounts of periods that are over, when all that ran in them has ended."""
        for key, account in list(self.accounts.items()):
            is_over = isinstance(account, SpendAccount) and account.is_over and account.is_idle
            if is_over and self._book.forget(key):
                del self.accounts[key]

    def _make(self, grant: KeyGrant, model: str, unix_ms: int) -> AccountSet:
        limits = [limit for limit in grant.quotas if _applies(limit, grant, model)]
        accounts = [self._account(limit, unix_ms) for limit in limits]
        ends = [account.period.ends_ms for account in accounts if isinstance(account, SpendAccount)]

        def named(*names: str) -> tuple[int, ...]:
            return tuple(at for at, limit in enumerate(limits) if limit.name in names)

        return AccountSet(
            quotas=grant.quotas,
            accounts=tuple(accounts),
            until_unix_ms=min(ends, default=2**62),
            tokens=named(TOKENS_PER_MINUTE),
            requests=named(REQUESTS_PER_MINUTE),
            slots=named(CONCURRENT_REQUESTS),
            spends=named(*_PERIODS),
        )

    def _account(self, limit: QuotaLimit, unix_ms: int) -> Account:
        of_key = "" if limit.key_id is None else limit.key_id.hex
        period: Period | None = None
        if limit.name in _PERIODS:
            period = period_of(_PERIODS[limit.name], unix_ms)
        key = self._key(limit.name, of_key, limit.model or "", period.name if period else "")
        lease = self._lease(key, limit)
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = self._account_new(limit, key, lease, period)
        account.limit = limit
        return account

    def _account_new(self, limit: QuotaLimit, key: bytes, lease: Lease, period: Period | None) -> Account:
        if period is not None:
            return SpendAccount(limit, key, lease, period, self._bounds)
        if limit.name == CONCURRENT_REQUESTS:
            return SlotAccount(limit, key, lease, self._bounds)
        return BucketAccount(limit, key, lease, self._bounds)

    def _lease(self, key: bytes, limit: QuotaLimit) -> Lease:
        cap = max(0, limit.burst if limit.burst is not None else limit.limit)
        if limit.name in _PERIODS and key not in self._book.leases:
            ahead_s = self._bounds.spend_ahead_s
            self._book.leases[key] = Lease(cap, now_ms(), ahead_s=ahead_s, life_ms=int(ahead_s * 1000))
        rate = 0 if limit.name in _PERIODS or limit.name == CONCURRENT_REQUESTS else limit.limit
        return self._book.lease(key, cap, now_ms(), rate_per_minute=rate)


def _applies(limit: QuotaLimit, grant: KeyGrant, model: str) -> bool:
    return limit.model in (None, model) and limit.key_id in (None, grant.key_id)
