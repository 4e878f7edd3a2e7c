"""What other apps and the gateway know of a tenant's API key. No Django here."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

TOKENS_PER_MINUTE: Final = "tokens_per_minute"
REQUESTS_PER_MINUTE: Final = "requests_per_minute"
CONCURRENT_REQUESTS: Final = "concurrent_requests"
SPEND_PER_DAY: Final = "spend_per_day"
SPEND_PER_MONTH: Final = "spend_per_month"
QUOTA_NAMES: Final = (
    TOKENS_PER_MINUTE,
    REQUESTS_PER_MINUTE,
    CONCURRENT_REQUESTS,
    SPEND_PER_DAY,  # of a day and of a month of UTC
    SPEND_PER_MONTH,
)
QUOTAS_WITH_BURST: Final = (TOKENS_PER_MINUTE, REQUESTS_PER_MINUTE)  # the ones that refill
QUOTA_SCOPES: Final = ("tenant", "key", "model")


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """One bound on a tenant: on all it does, on one of its keys, or on its requests of one model.

    `name` is one of QUOTA_NAMES, `scope` one of QUOTA_SCOPES. `subject` is for people: the tenant's name, the
    key's public id, or the model's slug. `limit` counts tokens, requests, slots or micro-dollars, by `name`.
    """

    name: str
    scope: str
    subject: str
    limit: int
    model: str | None = None
    key_id: UUID | None = None
    burst: int | None = None  # how much a full bucket holds, where that is not `limit`


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What one live API key allows, as held in the gateway's memory.

    `public_id` is the 8-character middle part of the key; `digest` is HMAC-SHA256(pepper, whole key).
    `models` is None when every model is allowed. Suspended tenants and revoked keys have no grant.
    `data_key` (32 bytes) seals what is kept of the tenant's text (`tenants.data_keys`); with `zero_retention`
    nothing of it is kept. The two bounds are None where the gateway's own apply. `quotas` are all that bound
    requests with this key: the tenant's, the key's own, and those of models. `weight` is the tenant's share
    against others when there is not enough for all.
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
    quotas: tuple[QuotaLimit, ...] = ()
    weight: float = 1.0
    accepts_smaller_model: bool = False  # under pressure, instead of a refusal
    accepts_batch: bool = False  # likewise: its requests may become batch jobs
    continues_streams: bool = False  # another replica goes on with a stream whose replica was lost
