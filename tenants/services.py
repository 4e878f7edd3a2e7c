"""Writes of this app. Keyword-only, one transaction each, with an audit entry in it.

Tenants are made and changed by operators (inside `operator_scope()`); the database refuses the application
role. Keys and members are also the tenant's own business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connections
from django.utils import timezone

from config.environment import key_pepper, master_keys
from tenants.audit import Value, audit_write, change
from tenants.data_keys import data_key_generate, data_key_wrap
from tenants.ids import uuid7_now
from tenants.keys import SCOPES, key_digest, key_generate, key_parse
from tenants.models import ApiKey, Member, Tenant, TenantDataKey, User
from tenants.scoping import alias_current, tenant_scope


class TenantsError(Exception):
    """A refused write; `code` is stable."""

    code = "tenants_error"


class TenantUnknown(TenantsError):
    code = "tenant_unknown"


class TenantClosed(TenantsError):
    """Its data key is destroyed: nothing brings the tenant back."""

    code = "tenant_closed"


class UnknownScope(TenantsError):
    code = "unknown_scope"


class KeyUnknown(TenantsError):
    code = "key_unknown"


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. `plaintext` exists only here: show it once, store it nowhere."""

    key: ApiKey
    plaintext: str


def tenant_create(
    *,
    slug: str,
    name: str,
    actor: str,
    zero_retention: bool = False,
    max_output_tokens: int | None = None,
) -> Tenant:
    """With a data key of its own. Raises ValidationError."""
    settings = {"zero_retention": zero_retention, "max_output_tokens": max_output_tokens}
    tenant = Tenant(id=uuid7_now(), slug=slug, name=name, **settings)
    with tenant_scope(tenant.id):
        tenant.full_clean()
        tenant.save(force_insert=True)
        wrapped = data_key_wrap(master_keys(), tenant.id, data_key_generate())
        TenantDataKey.objects.create(tenant=tenant, **wrapped._asdict())
        audit_write(
            tenant_id=tenant.id,
            actor=actor,
            action="tenant.create",
            target=slug,
            diff={"slug": slug, "name": name, **settings},
        )
    return tenant


def tenant_settings_set(
    *,
    tenant_id: UUID,
    zero_retention: bool,
    max_output_tokens: int | None,
    continues_streams: bool,
    actor: str,
) -> Tenant:
    """The gateways hear of it at the commit. Raises TenantUnknown, TenantClosed, ValidationError."""
    after: dict[str, Value] = {
        "zero_retention": zero_retention,
        "max_output_tokens": max_output_tokens,
        "continues_streams": continues_streams,
    }
    return tenant_fields_set(tenant_id=tenant_id, after=after, action="tenant.settings", actor=actor)


def tenant_fields_set(*, tenant_id: UUID, after: Mapping[str, Value], action: str, actor: str) -> Tenant:
    """Audited with what was before; nothing where nothing changes. Raises as `tenant_settings_set`."""
    with tenant_scope(tenant_id):
        tenant = tenant_lock(tenant_id)
        before: dict[str, Value] = {name: getattr(tenant, name) for name in after}
        if before == after:
            return tenant
        for name, value in after.items():
            setattr(tenant, name, value)
        tenant.clean_fields()
        tenant.save(update_fields=list(after))
        audit_write(
            tenant_id=tenant_id,
            actor=actor,
            action=action,
            target=tenant.slug,
            diff=change(before, after),
        )
    return tenant


def tenant_suspend(*, tenant_id: UUID, actor: str, reason: str = "") -> Tenant:
    """Every key of the tenant stops working at once; nothing is lost."""
    return _status_set(tenant_id, Tenant.Status.SUSPENDED, actor=actor, reason=reason)


def tenant_resume(*, tenant_id: UUID, actor: str, reason: str = "") -> Tenant:
    return _status_set(tenant_id, Tenant.Status.ACTIVE, actor=actor, reason=reason)


def tenant_close(*, tenant_id: UUID, actor: str, reason: str) -> Tenant:
    """For good: every key is revoked and the data key destroyed, so nothing kept of the tenant can be read.

    Usage, ledger and audit rows stay. Raises TenantUnknown, TenantClosed.
    """
    with tenant_scope(tenant_id):
        tenant = tenant_lock(tenant_id, no_key=False)  # no key is issued meanwhile
        live = ApiKey.objects.select_for_update().filter(revoked_at__isnull=True).order_by("id")
        revoked = [key.public_id for key in live]
        live.update(revoked_at=timezone.now())
        TenantDataKey.objects.all().delete()
        before, tenant.status = tenant.status, Tenant.Status.CLOSED
        tenant.save(update_fields=["status"])
        audit_write(
            tenant_id=tenant_id,
            actor=actor,
            action="tenant.close",
            target=tenant.slug,
            diff={"before": before, "reason": reason, "keys_revoked": revoked},
        )
    return tenant


def tenant_lock(tenant_id: UUID, *, no_key: bool = True) -> Tenant:
    """The tenant in scope, locked against every other change of it. Raises TenantUnknown, TenantClosed.

    With `no_key` others may refer to it: their foreign keys are looked at when they hold the audit lock.
    """
    tenant = Tenant.objects.select_for_update(no_key=no_key).first()
    if tenant is None:
        raise TenantUnknown(f"no tenant has the id {tenant_id}")
    if tenant.status == Tenant.Status.CLOSED:
        raise TenantClosed(f"tenant {tenant.slug} is closed for good")
    return tenant


def _status_set(tenant_id: UUID, status: Tenant.Status, *, actor: str, reason: str) -> Tenant:
    with tenant_scope(tenant_id):
        tenant = tenant_lock(tenant_id)
        if tenant.status == status:
            return tenant
        before, tenant.status = tenant.status, status
        tenant.save(update_fields=["status"])
        audit_write(
            tenant_id=tenant_id,
            actor=actor,
            action="tenant.suspend" if status == Tenant.Status.SUSPENDED else "tenant.resume",
            target=tenant.slug,
            diff={"before": before, "after": str(status), "reason": reason},
        )
    return tenant


def member_add(*, tenant_id: UUID, user: User, role: str, actor: str) -> Member:
    member = Member(tenant_id=tenant_id, user=user, role=role)
    with tenant_scope(tenant_id):
        member.full_clean()
        member.save(force_insert=True)
        audit_write(
            tenant_id=tenant_id,
            actor=actor,
            action="member.add",
            target=user.get_username(),
            diff={"role": role},
        )
    return member


def key_issue(
    *,
    tenant_id: UUID,
    name: str,
    actor: str,
    scopes: Iterable[str] = ("completions",),
    allowed_models: Iterable[str] | None = None,
    expires_at: datetime | None = None,
    max_open_requests: int | None = None,
    created_by: User | None = None,
) -> IssuedKey:
    """A new key for a tenant; every gateway knows it within a moment of the commit.

    Raises UnknownScope, TenantClosed, ValidationError.
    """
    wanted = sorted(set(scopes))
    if unknown := [scope for scope in wanted if scope not in SCOPES]:
        raise UnknownScope(f"unknown scope {unknown[0]!r}; known: {', '.join(sorted(SCOPES))}")
    plaintext = key_generate()
    parsed = key_parse(plaintext)
    assert parsed is not None
    models = None if allowed_models is None else sorted(set(allowed_models))
    key = ApiKey(
        tenant_id=tenant_id,
        name=name,
        public_id=parsed.public_id,
        digest=key_digest(key_pepper(), plaintext),
        last4=parsed.last4,
        scopes=wanted,
        allowed_models=models,
        expires_at=expires_at,
        max_open_requests=max_open_requests,
        created_by=created_by,
    )
    with tenant_scope(tenant_id):
        key.full_clean()
        key.save(force_insert=True)
        # The foreign key, looked at now, waits for a close in progress: that close is seen, or sees this key.
        with connections[alias_current()].cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if Tenant.objects.filter(status=Tenant.Status.CLOSED).exists():
            raise TenantClosed(f"tenant {tenant_id} is closed for good")
        audit_write(
            tenant_id=tenant_id,
            actor=actor,
            action="key.issue",
            target=key.public_id,
            diff={
                "name": name,
                "scopes": wanted,
                "models": models,
                "expires_at": expires_at.isoformat() if expires_at else None,
                "max_open_requests": max_open_requests,
            },
        )
    return IssuedKey(key=key, plaintext=plaintext)


def key_limit_set(*, tenant_id: UUID, key_id: UUID, max_open_requests: int | None, actor: str) -> ApiKey:
    """Of its requests served at a time. Operators only. Raises KeyUnknown, ValidationError."""
    with tenant_scope(tenant_id):
        key = key_lock(tenant_id, key_id)
        if key.max_open_requests == max_open_requests:
            return key
        before, key.max_open_requests = key.max_open_requests, max_open_requests
        key.clean_fields()
        key.save(update_fields=["max_open_requests"])
        audit_write(
            tenant_id=tenant_id,
            actor=actor,
            action="key.limit",
            target=key.public_id,
            diff={"before": before, "after": max_open_requests},
        )
    return key


def key_lock(tenant_id: UUID, key_id: UUID) -> ApiKey:
    """After the tenant's row, where that is locked too. Raises KeyUnknown."""
    key = ApiKey.objects.select_for_update().filter(id=key_id).first()
    if key is None:
        raise KeyUnknown(f"tenant {tenant_id} has no key {key_id}")
    return key


def key_revoke(*, tenant_id: UUID, key_id: UUID, actor: str, reason: str = "") -> ApiKey:
    """The key stops working everywhere; revoking it again changes nothing."""
    with tenant_scope(tenant_id):
        key = key_lock(tenant_id, key_id)
        if key.revoked_at is None:
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
            audit_write(
                tenant_id=tenant_id,
                actor=actor,
                action="key.revoke",
                target=key.public_id,
                diff={"reason": reason},
            )
    return key
