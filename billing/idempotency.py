"""Who runs the request that came with an idempotency key, and what became of it. No Django here.

One row per tenant and key, for a day. Its owner, the gateway that runs the request, holds a lease that it
renews; when the lease runs out another gateway may take over, under a higher epoch, and from then on nothing
the old owner writes counts. Answers arrive sealed: nothing here can read them. See docs/billing.md.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from billing.connections import Connections, StoreUnavailable

__all__ = ["Claim", "IdempotencyStore", "Reused", "Running", "StoreUnavailable", "Stored"]

LIFE_S: Final = 24 * 3600
LEASE_S: Final = 15
RENEW_S: Final = 5.0
SPARE_S: Final = 600  # after its lease a living owner may keep a request
_RENEW_AGAIN_S: Final = 1.0  # after a failure
MAX_KEY_CHARS: Final = 255
MAX_ANSWER_BYTES: Final = 1 << 20  # of a sealed answer; a larger one is not kept
_MAX_HELD_S: Final = 1800.0  # no request takes longer: a claim that nobody ended is let go
_RENEW_TENANTS: Final = 64  # in one transaction
_CONNECTIONS: Final = 4
_LIMIT_S: Final = 2.0
_ROUNDS: Final = 3  # of a claim, when the row it met was deleted by somebody else

_INSERT = """
INSERT INTO billing_idempotencyrecord
    (tenant_id, key, fingerprint, request_id, owner, lease_until, expires_at)
VALUES (%(tenant_id)s, %(key)s, %(fingerprint)s, %(request_id)s, %(owner)s,
        now() + make_interval(secs => %(lease_s)s), now() + make_interval(secs => %(life_s)s))
ON CONFLICT (tenant_id, key) DO NOTHING
RETURNING request_id, attempt, owner_epoch
"""
_TAKE_OVER = """
UPDATE billing_idempotencyrecord
SET state = 'in_flight', attempt = attempt + 1, owner = %(owner)s, owner_epoch = owner_epoch + 1,
    lease_until = now() + make_interval(secs => %(lease_s)s)
WHERE tenant_id = %(tenant_id)s AND key = %(key)s AND fingerprint = %(fingerprint)s AND expires_at > now()
  AND (state = 'failed' OR (state = 'in_flight' AND NOT %(is_held)s
       AND lease_until < now() - make_interval(secs => %(spare_s)s)))
RETURNING request_id, attempt, owner_epoch
"""
_DELETE_EXPIRED = """
DELETE FROM billing_idempotencyrecord
WHERE tenant_id = %(tenant_id)s AND key = %(key)s
  AND expires_at <= now() AND (state <> 'in_flight' OR lease_until < now())
"""
_FIND = """
SELECT request_id, attempt, owner, owner_epoch, state, status, prompt_tokens, cached_tokens, output_tokens,
       lease_until < now() AS is_lapsed,
       fingerprint = %(fingerprint)s AS is_same,
       CASE WHEN fingerprint = %(fingerprint)s THEN answer END AS answer
FROM billing_idempotencyrecord WHERE tenant_id = %(tenant_id)s AND key = %(key)s
"""
# Twice by the same owner is once: the first time may have been committed and its answer lost.
_FINISH = """
UPDATE billing_idempotencyrecord
SET state = 'done', status = %(status)s, answer = %(answer)s, prompt_tokens = %(prompt_tokens)s,
    cached_tokens = %(cached_tokens)s, output_tokens = %(output_tokens)s
WHERE request_id = %(request_id)s AND owner = %(owner)s AND owner_epoch = %(owner_epoch)s
  AND state IN ('in_flight', 'done')
"""
_FAIL = """
UPDATE billing_idempotencyrecord SET state = 'failed'
WHERE request_id = %(request_id)s AND owner = %(owner)s AND owner_epoch = %(owner_epoch)s
  AND state IN ('in_flight', 'failed')
"""
_RENEW = """
UPDATE billing_idempotencyrecord SET lease_until = now() + make_interval(secs => %s)
WHERE request_id = ANY(%s) AND owner = %s AND state = 'in_flight'
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """Ours to run. A later attempt keeps the request id of the first."""

    request_id: UUID
    attempt: int
    owner_epoch: int


@dataclass(frozen=True, slots=True)
class Running:
    """`owner`, a gateway's incarnation, runs it now; `is_lapsed`: it has not renewed its lease in time."""

    request_id: UUID
    attempt: int
    owner: str
    is_lapsed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """Finished. `answer` is None where it was not kept: zero retention, or too large."""

    request_id: UUID
    attempt: int
    status: int
    answer: bytes | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Reused:
    """The key was used with another request."""


@dataclass(frozen=True, slots=True)
class _Held:
    tenant_id: UUID
    key: str
    claim: Claim
    claimed_at: float  # monotonic


class IdempotencyStore:
    """`owner` is this process's incarnation. Every call takes 2 s at most, or raises StoreUnavailable."""

    def __init__(self, database_url: str, owner: str, *, limit_s: float = _LIMIT_S) -> None:
        self._owner = owner
        self._connections = Connections(database_url, size=_CONNECTIONS, limit_s=limit_s)
        self._held: dict[UUID, _Held] = {}  # by request
        self._keys: set[tuple[UUID, str]] = set()  # of those requests: tenant and key

    async def claim(
        self,
        tenant_id: UUID,
        key: str,
        fingerprint: bytes,
        request_id: UUID,
        *,
        may_take_over: bool = True,
    ) -> Claim | Running | Stored | Reused:
        """`request_id` becomes the request's, if the key is new. A failed or an abandoned one is run again.

        Without `may_take_over` one whose lease has lapsed is `Running`, for ten minutes: where its owner is
        known to live it only could not reach the database.
        Asked again with the same `request_id` after StoreUnavailable, it gives the same claim.
        `key` has 1 to 255 characters, `fingerprint` 32 bytes. Raises StoreUnavailable, ValueError.
        """
        if not 1 <= len(key) <= MAX_KEY_CHARS or "\0" in key:
            raise ValueError("an idempotency key has 1 to 255 characters")
        row = {
            "tenant_id": tenant_id,
            "key": key,
            "fingerprint": fingerprint,
            "request_id": request_id,
            "owner": self._owner,
            "lease_s": LEASE_S,
            "life_s": LIFE_S,
            # After an outage a lease may have run out, but what runs here is not started again here.
            "is_held": (tenant_id, key) in self._keys,
            "spare_s": 0 if may_take_over else SPARE_S,
        }
        async with self._connections.transaction() as conn:
            await _tenant_set(conn, tenant_id)
            found = await self._claim(conn, row)
        if isinstance(found, Claim):
            self._held[found.request_id] = _Held(tenant_id, key, found, time.monotonic())
            self._keys.add((tenant_id, key))
        return found

    async def finish(
        self,
        tenant_id: UUID,
        claim: Claim,
        *,
        status: int,
        answer: bytes | None,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
    ) -> bool:
        """False: another gateway has taken over, and nothing was written. May be repeated after
        StoreUnavailable; until then the lease is kept."""
        is_kept = answer is not None and len(answer) <= MAX_ANSWER_BYTES
        result = {
            "status": status,
            "answer": answer if is_kept else None,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "output_tokens": output_tokens,
        }
        return await self._end(tenant_id, claim, _FINISH, result)

    async def fail(self, tenant_id: UUID, claim: Claim) -> bool:
        """There is nothing to replay: the next request with the key runs as attempt + 1. Else as `finish`."""
        return await self._end(tenant_id, claim, _FAIL, {})

    async def run(self) -> None:
        """Renew the leases of what was claimed here and not yet ended, until cancelled."""
        pause_s = RENEW_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._renew()
                pause_s = RENEW_S
            except StoreUnavailable as error:
                logger.warning("idempotency: leases are not renewed: %s", error)
                pause_s = _RENEW_AGAIN_S

    async def close(self) -> None:
        await self._connections.close()

    # -- inner parts --------------------------------------------------------------------------------------

    async def _claim(
        self, conn: psycopg.AsyncConnection[Any], row: dict[str, Any]
    ) -> Claim | Running | Stored | Reused:
        async with conn.cursor(row_factory=dict_row) as cursor:
            for _ in range(_ROUNDS):
                for statement in (_INSERT, _TAKE_OVER):
                    await cursor.execute(statement, row)
                    if (claimed := await cursor.fetchone()) is not None:
                        return Claim(**claimed)
                await cursor.execute(_DELETE_EXPIRED, row)
                if cursor.rowcount:
                    continue
                await cursor.execute(_FIND, row)
                if (found := await cursor.fetchone()) is not None:
                    return self._told(found, row["request_id"])
        raise StoreUnavailable("the record of this key keeps changing")

    def _told(self, found: dict[str, Any], request_id: UUID) -> Claim | Running | Stored | Reused:
        if not found["is_same"]:
            return Reused()
        if found["state"] == "done":
            answer = found["answer"]
            return Stored(
                found["request_id"],
                found["attempt"],
                found["status"],
                None if answer is None else bytes(answer),
                found["prompt_tokens"],
                found["cached_tokens"],
                found["output_tokens"],
            )
        if found["request_id"] == request_id and found["owner"] == self._owner:
            return Claim(request_id, found["attempt"], found["owner_epoch"])
        return Running(found["request_id"], found["attempt"], found["owner"], found["is_lapsed"])

    async def _end(self, tenant_id: UUID, claim: Claim, statement: str, result: dict[str, Any]) -> bool:
        row = {"request_id": claim.request_id, "owner_epoch": claim.owner_epoch, "owner": self._owner}
        async with self._connections.transaction() as conn:
            await _tenant_set(conn, tenant_id)
            is_ours = (await conn.execute(statement, row | result)).rowcount == 1
        held = self._held.get(claim.request_id)
        if held is not None and held.claim == claim:
            self._let_go(held)
        return is_ours

    def _let_go(self, held: _Held) -> None:
        del self._held[held.claim.request_id]
        self._keys.discard((held.tenant_id, held.key))

    async def _renew(self) -> None:
        oldest = time.monotonic() - _MAX_HELD_S
        by_tenant: dict[UUID, list[UUID]] = {}
        for request_id, held in list(self._held.items()):
            if held.claimed_at < oldest:
                logger.error("idempotency: request %s was never ended, and is let go", request_id)
                self._let_go(held)
            else:
                by_tenant.setdefault(held.tenant_id, []).append(request_id)
        tenants = list(by_tenant)
        for start in range(0, len(tenants), _RENEW_TENANTS):
            async with self._connections.transaction() as conn, conn.pipeline():
                for tenant_id in tenants[start : start + _RENEW_TENANTS]:
                    await _tenant_set(conn, tenant_id)
                    await conn.execute(_RENEW, (LEASE_S, by_tenant[tenant_id], self._owner))


async def _tenant_set(conn: psycopg.AsyncConnection[Any], tenant_id: UUID) -> None:
    await conn.execute("SELECT set_config('app.tenant_id', %s, true)", (str(tenant_id),))
