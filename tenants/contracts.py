"""What other apps and the gateway know of a tenant's API key. No Django here."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What one live API key allows, as held in the gateway's memory.

    `public_id` is the 8-character middle part of the key; `digest` is HMAC-SHA256(pepper, whole key).
    `models` is None when every model is allowed. Suspended tenants and revoked keys have no grant.
    `data_key` (32 bytes) seals what is kept of the tenant's text (`tenants.data_keys`); with `zero_retention`
    nothing of it is kept. The two bounds are None where the gateway's own apply.
    """

    key_id: UUID
    public_id: str
    digest: bytes
    tenant_id: UUID
    tenant_name: str
    scopes: frozenset[str]
    models: frozenset[str] | None
    expires_at: datetime | None
    data_key: bytes = field(repr=False)
    zero_retention: bool = False
    max_output_tokens: int | None = None  # of one request of the tenant
    max_open_requests: int | None = None  # of this key, at a time
