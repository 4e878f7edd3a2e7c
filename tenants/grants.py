"""The gateway's copy of who may call: every live key of every active tenant. Plain psycopg, no Django here.

Runs as the gateway's role, which reads the key and tenant tables and writes neither.
"""

from typing import Any

import psycopg

from tenants.contracts import KeyGrant

SNAPSHOT_CHANNEL = "sluice_snapshot"  # NOTIFY channel; the payload is the name of the table that changed

_LIVE_KEYS = """
    SELECT k.id, k.public_id, k.digest, k.tenant_id, t.name, k.scopes, k.allowed_models, k.expires_at
    FROM tenants_apikey k JOIN tenants_tenant t ON t.id = k.tenant_id
    WHERE t.status = 'active' AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
"""


async def grants_load(conn: psycopg.AsyncConnection[Any]) -> list[KeyGrant]:
    """A grant for each key usable now; the caller checks `expires_at` again when the key is used."""
    rows = await (await conn.execute(_LIVE_KEYS)).fetchall()
    return [
        KeyGrant(
            key_id=key_id,
            public_id=public_id,
            digest=bytes(digest),
            tenant_id=tenant_id,
            tenant_name=tenant_name,
            scopes=frozenset(scopes),
            models=None if models is None else frozenset(models),
            expires_at=expires_at,
        )
        for key_id, public_id, digest, tenant_id, tenant_name, scopes, models, expires_at in rows
    ]
