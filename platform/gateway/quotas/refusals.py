"""What a client hears that its quotas have no room for: which limit, whose, how much is taken, until when.

A wait is the longest of all limits that refused; who is told later is told to come later, and each a little
later than that at random, so that not all come back at once. Never a secret, never another tenant's figures.
"""

import random
from collections.abc import Sequence

from gateway.errors import MAX_RETRY_AFTER_MS, ApiError, LimitDetail, overloaded
from gateway.quotas.accounts import Account
from gateway.quotas.exchange import Short
from gateway.quotas.spend import SpendAccount
from gateway.quotas.store import now_ms

_JITTER = 0.2
_NOT_KNOWN_MS = 30_000  # while the store is down

_WORDS = {
    "tokens_per_minute": "tokens per minute",
    "requests_per_minute": "requests per minute",
    "concurrent_requests": "requests at a time",
    "spend_per_day": "micro-dollars per UTC day",
    "spend_per_month": "micro-dollars per UTC month",
}


def exceeds(account: Account, amount: int) -> ApiError:
    """Waiting does not help."""
    limit = account.limit
    message = (
        f"this request needs up to {amount} of the {account.lease.cap} {_WORDS[limit.name]} of "
        f"{_whose(account)}: make it smaller, or have the limit raised"
    )
    used = account.lease.cap - account.lease.remaining()
    detail = LimitDetail(
        name=limit.name, scope=limit.scope, subject=limit.subject, used=used, limit=account.lease.cap
    )
    return ApiError("request_exceeds_quota", message, limit=detail)


def refused(shorts: Sequence[Short], chance: random.Random, *, is_store_down: bool) -> ApiError:
    """Names the limit that takes longest to clear."""
    worst = max(shorts, key=lambda short: -1 if short.wait_ms is None else short.wait_ms)
    if any(isinstance(short.account, SpendAccount) for short in shorts):
        worst = next(short for short in shorts if isinstance(short.account, SpendAccount))
    account, limit = worst.account, worst.account.limit
    wait_ms = _NOT_KNOWN_MS if worst.wait_ms is None else max(1, worst.wait_ms)
    remaining = account.lease.remaining()
    detail = LimitDetail(
        name=limit.name,
        scope=limit.scope,
        subject=limit.subject,
        used=account.lease.cap - remaining,
        held=account.lease.reserved,
        limit=account.lease.cap,
        clears_in_ms=wait_ms,
    )
    lease, amount = account.lease, worst.amount
    told_ms = account.promises.wait_ms(amount, wait_ms, lease.rate_per_minute, now_ms())
    reason = f"{worst.amount} asked for, {remaining} of {account.lease.cap} {_WORDS[limit.name]} left"
    if is_store_down:
        reason = "the quota store does not answer, and this gateway's share of the limit is used up"
    message = f"the quota of {_whose(account)} has no room for this request: {reason}"
    retry_after_ms = min(int(told_ms * (1 + chance.random() * _JITTER)), MAX_RETRY_AFTER_MS)
    if not isinstance(account, SpendAccount):
        return ApiError(limit.name, message, retry_after_ms=retry_after_ms, limit=detail)
    error = ApiError("insufficient_quota", message, retry_after_ms=retry_after_ms, limit=detail)
    if is_store_down:  # there may be something left
        error.headers = [header for header in error.headers if header[0] != b"x-should-retry"]
    return error


def batch_refused() -> ApiError:
    message = "batch requests wait until the quota store is back"
    limit = LimitDetail(name="quota_store", scope="gateway", subject="batch")
    return overloaded(message, _NOT_KNOWN_MS, limit=limit)


def store_refused(subject: str) -> ApiError:
    """What was counted of this tenant cannot be read: nothing is granted blindly, people must look."""
    message = "your quotas cannot be read: this was reported, and others are not affected"
    return overloaded(
        message, _NOT_KNOWN_MS, limit=LimitDetail(name="quota_store", scope="tenant", subject=subject)
    )


def ledger_away(message: str, wait_ms: int) -> ApiError:
    limit = LimitDetail(name="quota_store", scope="gateway", subject="spend", clears_in_ms=wait_ms)
    return overloaded(message, wait_ms, limit=limit)


def _whose(account: Account) -> str:
    limit = account.limit
    return {"tenant": "the tenant", "key": "the API key", "model": "the model"}[limit.scope] + (
        f" {limit.subject!r}"
    )
