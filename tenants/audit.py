"""The audit log: append-only, hash-chained per tenant, written in the transaction of what it records.

`entry_hash = SHA-256(prev_hash ‖ canonical JSON of the entry)`; a chain starts from 32 zero bytes. An entry
changed or removed in the middle breaks the chain; entries cut off at its end show only against a hash kept
elsewhere.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet

from tenants.models import AuditEntry
from tenants.scoping import alias_current

CHAIN_START: Final = bytes(32)
LOCK_CLASS: Final = 0x534C43  # first key of this lock's pg_advisory_xact_lock(int, int)

Value = str | int | bool | None | list[str]


def change(before: Mapping[str, Value], after: Mapping[str, Value]) -> dict[str, Value]:
    """As a diff says it: what each field was, and what it is."""
    return {f"{name}_before": value for name, value in before.items()} | {
        f"{name}_after": value for name, value in after.items()
    }


def audit_write(
    *,
    tenant_id: UUID | None,
    actor: str,
    action: str,
    target: str,
    diff: Mapping[str, Value] | None = None,
    request_id: str = "",
) -> AuditEntry:
    """Append to the tenant's chain, or with no tenant to the platform's, inside the caller's transaction.

    The chain's advisory lock is held to the end of that transaction: no two writers follow the same entry.
    """
    alias = alias_current()
    if not connections[alias].in_atomic_block:
        raise RuntimeError("audit entries are written in the transaction of the change they record")
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK_CLASS, str(tenant_id)])
    last = _chain(tenant_id).order_by("-sequence").first()
    entry = AuditEntry(
        tenant_id=tenant_id,
        sequence=1 if last is None else last.sequence + 1,
        actor=actor,
        action=action,
        target=target,
        diff=json.dumps(diff or {}, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
        request_id=request_id,
        created_at=datetime.now(UTC),
        prev_hash=CHAIN_START if last is None else bytes(last.entry_hash),
    )
    entry.entry_hash = audit_hash(entry)
    entry.save(force_insert=True)
    return entry


def _chain(tenant_id: UUID | None) -> QuerySet[AuditEntry]:
    if tenant_id is None:
        return AuditEntry.unscoped.filter(tenant__isnull=True)
    return AuditEntry.unscoped.filter(tenant_id=tenant_id)


def audit_hash(entry: AuditEntry) -> bytes:
    fields = {
        "id": str(entry.id),
        "tenant": str(entry.tenant_id),
        "sequence": entry.sequence,
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "diff": entry.diff,
        "request_id": entry.request_id,
        "created_at": entry.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
    }
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(bytes(entry.prev_hash) + canonical.encode()).digest()


def audit_verify(*, tenant_id: UUID | None) -> int | None:
    """None when the chain is whole, else the sequence number at which it first breaks."""
    expected_sequence, prev_hash = 1, CHAIN_START
    for entry in _chain(tenant_id).order_by("sequence").iterator():
        if (
            entry.sequence != expected_sequence
            or bytes(entry.prev_hash) != prev_hash
            or audit_hash(entry) != bytes(entry.entry_hash)
        ):
            return expected_sequence
        expected_sequence, prev_hash = expected_sequence + 1, bytes(entry.entry_hash)
    return None
