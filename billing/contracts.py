"""The usage record the gateway writes at the end of every request and the ledger prices. No Django here."""

from dataclasses import dataclass

import msgspec

OUTCOMES = (
    "completed",  # stop or length
    "cancelled",  # the client left, or read too slowly
    "deadline",
    "replica_lost",
    "gateway_lost",  # written by the reaper from the worker's checkpoints
    "filtered",
    "error",
)


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one request, as counted by the worker. Key: (request_id, attempt).

    `prompt_tokens` is 0 when no prefill was begun: such a request costs nothing.
    """

    request_id: str  # UUIDv7
    attempt: int
    tenant_id: str  # UUID
    key_id: str | None  # UUID; None when the reaper does not know it
    model: str
    digest: str
    klass: str
    worker: str
    worker_incarnation: str
    gateway: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    outcome: str
    occurred_at_ms: int  # Unix time


@dataclass(frozen=True, slots=True)
class Price:
    """Integer micro-dollars per million tokens, effective from a moment until the next version."""

    version: int
    model: str
    prompt_micro_usd_per_mtok: int
    cached_micro_usd_per_mtok: int
    output_micro_usd_per_mtok: int
