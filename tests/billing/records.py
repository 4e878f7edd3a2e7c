"""Makers of usage records and worker counts for the billing tests."""

from uuid import UUID

from billing.contracts import UsageRecord
from billing.reaper import WorkerUsageRow

OCCURRED_AT_MS = 1_760_000_000_000
TENANT = UUID("0199d0a0-0000-7000-8000-0000000000aa")


def request_id(number: int) -> UUID:
    """A valid UUIDv7 for a small number."""
    return UUID(int=(OCCURRED_AT_MS << 80) | (0x7 << 76) | (0b10 << 62) | number)


def usage(number: int = 1, **changes: object) -> UsageRecord:
    fields: dict[str, object] = {
        "request_id": str(request_id(number)),
        "attempt": 1,
        "tenant_id": str(TENANT),
        "key_id": None,
        "model": "m",
        "digest": "d",
        "klass": "interactive",
        "worker": "worker-0",
        "worker_incarnation": "worker-inc",
        "gateway": "gateway-inc",
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 5,
        "outcome": "completed",
        "occurred_at_ms": OCCURRED_AT_MS,
    }
    return UsageRecord(**(fields | changes))  # type: ignore[arg-type]


def worker_row(number: int = 1, **changes: object) -> WorkerUsageRow:
    fields: dict[str, object] = {
        "request_id": request_id(number),
        "attempt": 1,
        "tenant_id": TENANT,
        "gateway": "gateway-inc",
        "worker": "worker-0",
        "worker_incarnation": "worker-inc",
        "model": "m",
        "digest": "d",
        "klass": "interactive",
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 64,
        "reason": "",
        "at_ms": OCCURRED_AT_MS,
    }
    return WorkerUsageRow(**(fields | changes))  # type: ignore[arg-type]
