"""Keys that are not valid any more: what is open on the strength of one is ended.

A key ends by being revoked, with its tenant, and by its own time: the first two are seen in a new snapshot,
the last one by the clock alone, also while PostgreSQL is away.
"""

import asyncio
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Protocol

from gateway.errors import ApiError
from tenants.contracts import KeyGrant

_CHECK_S = 0.5


class Held(Protocol):
    """Something that is open on the strength of a key. `revoke` may come again, and after its end."""

    grant: KeyGrant

    def revoke(self) -> None: ...


class Revocation:
    """`held`: the gateway's own sets of what is open, in the order in which it is ended."""

    def __init__(self, *held: Collection[Held]) -> None:
        self._held = held
        self._grants: Mapping[str, KeyGrant] = {}
        self._next_expiry: datetime | None = None

    def changed(self, grants: Mapping[str, KeyGrant]) -> None:
        """These, by public id, count from now on."""
        self._grants = grants
        self._end()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            if self._next_expiry is not None and self._next_expiry <= datetime.now(UTC):
                self._end()

    def _end(self) -> None:
        now = datetime.now(UTC)
        expiries = [grant.expires_at for grant in self._grants.values() if grant.expires_at is not None]
        self._next_expiry = min((expiry for expiry in expiries if expiry > now), default=None)
        for some in self._held:
            for held in list(some):
                if not is_live(held.grant, self._grants, now):
                    held.revoke()


def is_live(grant: KeyGrant, grants: Mapping[str, KeyGrant], now: datetime) -> bool:
    """By the `grants` that count now, whatever it was when its request came."""
    current = grants.get(grant.public_id)
    if current is None or current.digest != grant.digest:
        return False
    return current.expires_at is None or current.expires_at > now


def revoked() -> ApiError:
    return ApiError("invalid_api_key", "this API key is no longer valid")
