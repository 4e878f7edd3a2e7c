"""How much is left, on every response: x-ratelimit-* as OpenAI's clients read it, and the IETF's RateLimit.

Of several limits on the same thing (of the tenant, the key, the model) the one that is nearest to its end.
"""

from collections.abc import Sequence

from gateway.http.exchange import HeaderList
from gateway.quotas.accounts import Account
from gateway.quotas.buckets import BucketAccount
from policy.bucket import MINUTE_MS


def headers_of(tokens: Sequence[Account], requests: Sequence[Account]) -> HeaderList:
    """As of now. draft-ietf-httpapi-ratelimit-headers: q and r in units, w and t in seconds."""
    headers: HeaderList = []
    policies: list[str] = []
    states: list[str] = []
    for name, accounts in (("tokens", tokens), ("requests", requests)):
        buckets = [account for account in accounts if isinstance(account, BucketAccount)]
        if not buckets:
            continue
        account, remaining = min(
            ((bucket, bucket.lease.remaining()) for bucket in buckets), key=lambda pair: _part(*pair)
        )
        cap, reset_ms = account.lease.cap, account.reset_ms(remaining)
        window_s = -(-cap * MINUTE_MS // (1000 * account.rate))
        policies.append(f'"{name}";q={cap};w={window_s}')
        states.append(f'"{name}";r={remaining};t={-(-reset_ms // 1000)}')
        headers += [
            (f"x-ratelimit-limit-{name}".encode(), b"%d" % cap),
            (f"x-ratelimit-remaining-{name}".encode(), b"%d" % remaining),
            (f"x-ratelimit-reset-{name}".encode(), duration(reset_ms)),
        ]
    if policies:
        headers += [
            (b"ratelimit-policy", ", ".join(policies).encode()),
            (b"ratelimit", ", ".join(states).encode()),
        ]
    return headers


def duration(ms: int) -> bytes:
    """As Go writes it: 12ms, 1s, 6m0s, 1h0m0s; rounded up to whole seconds from one on."""
    if ms < 1000:
        return b"%dms" % max(ms, 0)
    seconds = -(-ms // 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return b"%dh%dm%ds" % (hours, minutes, seconds)
    return b"%dm%ds" % (minutes, seconds) if minutes else b"%ds" % seconds


def _part(account: Account, remaining: int) -> float:
    return remaining / max(1, account.lease.cap)
