"""What a tenant has spent by the ledger, for a store that does not know it."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.store import QuotaStore
from policy.spend import Period
from tenants.contracts import QuotaLimit

logger = logging.getLogger(__name__)


class SpendSince(Protocol):
    """Micro-dollars in the ledger since then, of the whole tenant or only of a key or a model of it.

    Raises OSError or TimeoutError when the ledger cannot be read.
    """

    def __call__(
        self, tenant_id: UUID, since: datetime, *, key_id: UUID | None, model: str | None
    ) -> Awaitable[int]: ...


class LedgerAway(Exception):
    """What was spent cannot be known now."""

    def __init__(self, message: str, wait_ms: int) -> None:
        super().__init__(message)
        self.wait_ms = wait_ms


class Ledger:
    def __init__(self, spend_since: SpendSince | None, store: QuotaStore, bounds: QuotaBounds) -> None:
        self._spend_since = spend_since
        self._store = store
        self._timeout_s = bounds.ledger_timeout_s

    async def base(self, tenant_id: UUID, limit: QuotaLimit, period: Period) -> int:
        """Of a counter that the store does not have. Raises LedgerAway, StoreAway.

        After data loss it is asked late: first every gateway reports what it holds and has spent.
        """
        await self._store.beat()
        if learning_ms := self._store.learning_ms():
            raise LedgerAway("the quota store has lost its data and learns what was spent", learning_ms)
        if self._spend_since is None:
            raise LedgerAway("this gateway was given no ledger", 10_000)
        since = datetime.fromtimestamp(period.begins_ms / 1000, UTC)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._spend_since(tenant_id, since, key_id=limit.key_id, model=limit.model)
        except OSError as error:
            logger.warning("quotas: the ledger cannot be read: %r", error)
            raise LedgerAway("what was spent cannot be read now", 2_000) from error
