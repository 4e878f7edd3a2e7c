"""The gateway's copy of who may call, and how much: every live key of every active tenant. No Django here.

Plain psycopg, as the gateway's role, which reads the tables of keys, tenants and quotas and writes none.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tenants.contracts import KeyGrant, QuotaLimit
from tenants.data_keys import DataKeyUnreadable, WrappedKey, data_key_unwrap

SNAPSHOT_CHANNEL = "sluice_snapshot"  # NOTIFY channel; the payload is the name of the table that changed

_LIVE_KEYS = """
    SELECT k.id, k.public_id, k.digest, k.tenant_id, t.name, k.scopes, k.allowed_models, k.expires_at,
           k.max_open_requests, t.zero_retention, t.max_output_tokens,
           t.weight::float8 AS weight, t.accepts_smaller_model, t.accepts_batch,
           t.continues_streams
    FROM tenants_apikey k JOIN tenants_tenant t ON t.id = k.tenant_id
    WHERE t.status = 'active' AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
"""
_DATA_KEYS = """
    SELECT d.tenant_id, d.master_key_id, d.wrapped
    FROM tenants_tenantdatakey d JOIN tenants_tenant t ON t.id = d.tenant_id WHERE t.status = 'active'
"""
_QUOTAS = """
    SELECT q.tenant_id, q.key_id, q.name, q.scope, nullif(q.model, '') AS model, q."limit", q.burst,
           coalesce(k.public_id, nullif(q.model, ''), t.name) AS subject
    FROM tenants_quota q
    JOIN tenants_tenant t ON t.id = q.tenant_id
    LEFT JOIN tenants_apikey k ON k.id = q.key_id AND k.tenant_id = q.tenant_id
    WHERE t.status = 'active' AND (q.key_id IS NULL OR k.revoked_at IS NULL)
    ORDER BY q.tenant_id, q.scope DESC, q.model, q.name
"""

Quotas = dict[UUID, tuple[QuotaLimit, ...]]

logger = logging.getLogger(__name__)


async def grants_load(conn: psycopg.AsyncConnection[Any], master_keys: Sequence[bytes]) -> list[KeyGrant]:
    """A grant for each key usable now; the caller checks `expires_at` again when the key is used.

    A tenant whose data key cannot be unwrapped is left out with an error in the log, so that it does not keep
    the others' changes away. Raises DataKeyUnreadable when that is so of all: the master key is wrong.
    """
    data_keys = await _data_keys_load(conn, master_keys)
    of_tenant, of_key = await _quotas_load(conn)
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(_LIVE_KEYS)
        rows = await cursor.fetchall()
    return [
        KeyGrant(
            key_id=row["id"],
            public_id=row["public_id"],
            digest=bytes(row["digest"]),
            tenant_id=row["tenant_id"],
            tenant_name=row["name"],
            scopes=frozenset(row["scopes"]),
            models=None if row["allowed_models"] is None else frozenset(row["allowed_models"]),
            expires_at=row["expires_at"],
            data_key=data_keys[row["tenant_id"]],
            zero_retention=row["zero_retention"],
            max_output_tokens=row["max_output_tokens"],
            max_open_requests=row["max_open_requests"],
            quotas=of_tenant.get(row["tenant_id"], ()) + of_key.get(row["id"], ()),
            weight=row["weight"],
            accepts_smaller_model=row["accepts_smaller_model"],
            accepts_batch=row["accepts_batch"],
            continues_streams=row["continues_streams"],
        )
        for row in rows
        if row["tenant_id"] in data_keys
    ]


async def _quotas_load(conn: psycopg.AsyncConnection[Any]) -> tuple[Quotas, Quotas]:
    """By tenant, those that count whichever key is used; and by key, its own."""
    of_tenant: defaultdict[UUID, list[QuotaLimit]] = defaultdict(list)
    of_key: defaultdict[UUID, list[QuotaLimit]] = defaultdict(list)
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(_QUOTAS)
        async for row in cursor:
            tenant_id, key_id = row.pop("tenant_id"), row["key_id"]
            quota = QuotaLimit(**row)
            if key_id is None:
                of_tenant[tenant_id].append(quota)
            else:
                of_key[key_id].append(quota)
    return _frozen(of_tenant), _frozen(of_key)


def _frozen(quotas: dict[UUID, list[QuotaLimit]]) -> Quotas:
    return {of: tuple(some) for of, some in quotas.items()}


async def _data_keys_load(
    conn: psycopg.AsyncConnection[Any], master_keys: Sequence[bytes]
) -> dict[UUID, bytes]:
    data_keys: dict[UUID, bytes] = {}
    failure: DataKeyUnreadable | None = None
    for tenant_id, master_key_id, wrapped in await (await conn.execute(_DATA_KEYS)).fetchall():
        try:
            stored = WrappedKey(master_key_id, bytes(wrapped))
            data_keys[tenant_id] = data_key_unwrap(master_keys, tenant_id, stored)
        except DataKeyUnreadable as error:
            logger.error("grants: a tenant is left out: %s", error)
            failure = error
    if failure is not None and not data_keys:
        raise failure
    return data_keys
