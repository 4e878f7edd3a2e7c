"""The dispatchers' lease in Valkey: one key that expires, one counter of terms that does not.

Each question is one script: its time is the server's, and nobody comes between look and change. Terms follow
the server's clock too, so that a server that lost its data gives no term twice.
"""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dispatch.lease import Claim, Grant

LEASE_KEY, TERM_KEY = "{sluice:dispatch}:lease", "{sluice:dispatch}:term"
LEADS_KEY = "{sluice:dispatch}:leads"
ANSWER_S = 0.5
LEADS_VALID_MS = 10_000

_CLAIM = """
local holder, term, address = unpack(redis.call('HMGET', KEYS[1], 'holder', 'term', 'address'))
local own, seen = holder == ARGV[1], tonumber(ARGV[4])
if holder and not own then
    return {0, term, address, redis.call('PTTL', KEYS[1])}
end
if own and tonumber(term) >= seen then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return {1, term, ARGV[2], ARGV[3]}
end
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
if not own and last > tonumber(ARGV[5]) then
    return {0, string.format('%.0f', last), '', 0}
end
local time = redis.call('TIME')
local next = math.max(last + 1, seen + 1, time[1] * 1000000 + time[2])
term = string.format('%.0f', next)
redis.call('SET', KEYS[2], term)
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'term', term, 'address', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, term, ARGV[2], ARGV[3]}
"""
_LEAVE = """
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
end
"""
_RELEASE = """
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
"""


class LeaseStore:
    """`holder` names this process, `address` is where peers reach it."""

    def __init__(self, url: str, holder: str, address: str, valid_ms: int) -> None:
        """Raises ValueError for a bad URL."""
        self._valkey = Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._claim = self._valkey.register_script(_CLAIM)
        self._leave = self._valkey.register_script(_LEAVE)
        self._release = self._valkey.register_script(_RELEASE)
        self._holder = holder
        self._address = address
        self._valid_ms = valid_ms

    async def claim(self, claim: Claim) -> Grant:
        """Raises RedisError, OSError."""
        asked: list[str | int] = [self._holder, self._address, self._valid_ms]
        asked += [claim.seen_term, claim.takes_after]
        is_ours, term, address, left_ms = await self._claim(keys=[LEASE_KEY, TERM_KEY], args=asked)
        return Grant(bool(int(is_ours)), int(term), str(address), int(left_ms))

    async def leave(self, leads: str) -> None:
        """For the next holder, where it is ours. Raises RedisError, OSError."""
        await self._leave(keys=[LEASE_KEY, LEADS_KEY], args=[self._holder, leads, LEADS_VALID_MS])

    async def left(self) -> str:
        """By the last holder; empty where that is long ago. Raises RedisError, OSError."""
        left = await self._valkey.get(LEADS_KEY)
        return str(left or "")

    async def release(self) -> None:
        """Where it is ours. Raises RedisError, OSError."""
        await self._release(keys=[LEASE_KEY], args=[self._holder])

    async def close(self) -> None:
        await self._valkey.aclose()
