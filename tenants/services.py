"""Writes of this app. Keyword-only, one transaction each, with an audit entry in it.

Accounts and tenants are made and changed by operators (inside `operator_scope()`); the database refuses the
application role. Keys and members are also the tenant's own business.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from config.environment import key_pepper
from tenants.audit import audit_write
from tenants.ids import uuid7_now
from tenants.keys import SCOPES, key_digest, key_generate, key_parse
from tenants.models import ApiKey, Member, Tenant, User
from tenants.scoping import alias_current, tenant_scope


class TenantsError(Exception):
    """A refused write; `code` is stable."""

    code = "tenants_error"


class TenantUnknown(TenantsError):
    code = "tenant_unknown"


class UnknownScope(TenantsError):
    code = "unknown_scope"


class KeyUnknown(TenantsError):
    code = "key_unknown"


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. `plaintext` exists only here: show it once, store it nowhere."""

    key: ApiKey
    plaintext: str


def superuser_create(*, username: str, password: str, actor: str) -> User:
    with transaction.atomic(using=alias_current()):
        user = User.objects.create_superuser(username, password=password)
        audit_write(
            tenant_id=None, actor=actor, action="user.create", target=username, diff={"is_superuser": True}
        )
    return user


def password_set(*, user: User, password: str, actor: str) -> None:
    """Ends every session of the user, too."""
    with transaction.atomic(using=alias_current()):
        user.set_password(password)
        user.save(update_fields=["password"])
        audit_write(
            tenant_id=None,
            actor=actor,
            action="user.change",
            target=user.get_username(),
            diff={"changed": ["password"]},
        )


def tenant_create(*, slug: str, name: str, actor: str) -> Tenant:
    tenant = Tenant(id=uuid7_now(), slug=slug, name=name)
    with tenant_scope(tenant.id):
        tenant.full_clean()
        tenant.save(force_insert=True)
        audit_write(
            tenant_id=tenant.id,
            actor=actor,
            action="tenant.create",
            target=slug,
            diff={"slug": slug, "name": name},
        )
    return tenant


def tenant_suspend(*, tenant_id: UUID, actor: str, reason: str = "") -> Tenant:
    """Every key of the tenant stops working at once; nothing is lost."""
    return _status_set(tenant_id, Tenant.Status.SUSPENDED, actor=actor, reason=reason)


def tenant_resume(*, tenant_id: UUID, actor: str, reason: str = "") -> Tenant:
    return _status_set(tenant_id, Tenant.Status.ACTIVE, actor=actor, reason=reason)


def _status_set(tenant_id: UUID, status: Tenant.Status, *, actor: str, reason: str) -> Tenant:
    with tenant_scope(tenant_id):
        tenant = Tenant.objects.select_for_update().first()
        if tenant is None:
            raise TenantUnknown(f"no tenant has the id {tenant_id}")
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
    created_by: User | None = None,
) -> IssuedKey:
    """A new key for a tenant; every gateway knows it within a moment of the commit.

    Raises UnknownScope, ValidationError.
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
        created_by=created_by,
    )
    with tenant_scope(tenant_id):
        key.full_clean()
        key.save(force_insert=True)
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
            },
        )
    return IssuedKey(key=key, plaintext=plaintext)


def key_revoke(*, tenant_id: UUID, key_id: UUID, actor: str, reason: str = "") -> ApiKey:
    """The key stops working everywhere; revoking it again changes nothing."""
    with tenant_scope(tenant_id):
        key = ApiKey.objects.select_for_update().filter(id=key_id).first()
        if key is None:
            raise KeyUnknown(f"tenant {tenant_id} has no key {key_id}")
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
