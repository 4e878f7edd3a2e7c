"""What a tenant has spent since a moment, summed from what was billed. No Django here.

For a spend counter that has to be made anew. The sum reads the tenant's usage rows of the period, so it is
nothing to ask for on every request.
"""

from datetime import datetime
from uuid import UUID

from billing.connections import Connections

# An event's cost is what its ledger pair moves, written in one statement (`billing.ledger`); its key and its
# model are in its own row alone. One range of the index over tenant and moment.
_SPENT = """
SELECT coalesce(sum(cost_micro_usd), 0)::bigint FROM billing_usageevent
WHERE tenant_id = %(tenant_id)s AND occurred_at >= %(since)s
  AND (%(key_id)s::uuid IS NULL OR key_id = %(key_id)s) AND (%(model)s::text IS NULL OR model = %(model)s)
"""


async def spent_since(
    connections: Connections,
    tenant_id: UUID,
    since: datetime,
    *,
    key_id: UUID | None = None,
    model: str | None = None,
) -> int:
    """Micro-dollars, of requests that ended at `since` or later and are recorded; of one key, of one model.

    As the gateway's role. What its spool still holds is not in it, and what the reaper billed has no key.
    Raises StoreUnavailable.
    """
    parameters = {"tenant_id": tenant_id, "since": since, "key_id": key_id, "model": model}
    async with connections.transaction() as conn:
        await conn.execute("SELECT set_config('app.tenant_id', %s, true)", (str(tenant_id),))
        row = await (await conn.execute(_SPENT, parameters)).fetchone()
    assert row is not None
    return int(row[0])
