"""The ledger as quotas ask it: what a tenant has spent, over the gateway's own connections."""

from datetime import datetime
from uuid import UUID

from billing.connections import Connections, StoreUnavailable
from billing.spend import spent_since


class LedgerSpend:
    """Is a `SpendSince`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def __call__(
        self, tenant_id: UUID, since: datetime, *, key_id: UUID | None, model: str | None
    ) -> int:
        try:
            return await spent_since(self._connections, tenant_id, since, key_id=key_id, model=model)
        except StoreUnavailable as error:
            raise ConnectionError(str(error)) from error
