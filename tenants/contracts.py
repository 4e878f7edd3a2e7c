"""What other apps and the gateway know of a tenant's API key. No Django here."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What one live API key allows, as held in the gateway's memory.

    `public_id` is the 8-character middle part of the key; `digest` is HMAC-SHA256(pepper, whole key).
    `models` is None when every model is allowed. Suspended tenants and revoked keys have no grant.
    """

    key_id: UUID
    public_id: str
    digest: bytes
    tenant_id: UUID
    tenant_name: str
    scopes: frozenset[str]
    models: frozenset[str] | None
    expires_at: datetime | None
