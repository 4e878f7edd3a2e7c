"""Writes that say how much a tenant may use, and how it is treated while there is not enough for all.

Keyword-only, one transaction each, with an audit entry in it; gateways follow at the commit.
For operators: the database refuses the other roles.
"""

from decimal import Decimal
from uuid import UUID

from tenants.audit import Value, audit_write, change
from tenants.models import Quota, Tenant
from tenants.scoping import tenant_scope
from tenants.services import TenantsError, key_lock, tenant_fields_set, tenant_lock


class QuotaUnknown(TenantsError):
    code = "quota_unknown"


def quota_set(
    *,
    tenant_id: UUID,
    name: str,
    limit: int,
    actor: str,
    burst: int | None = None,
    key_id: UUID | None = None,
    model: str = "",
) -> Quota:
    """Bounds the tenant, or with `key_id` that key, or with `model` its requests of that model.

    `limit` and `burst` are in the units of `Quota`. Replaces the quota of the same name and subject, if any.
    Raises TenantUnknown, TenantClosed, KeyUnknown, ValidationError.
    """
    scope = "key" if key_id else "model" if model else "tenant"
    with tenant_scope(tenant_id):
        tenant = tenant_lock(tenant_id)
        key = key_lock(tenant_id, key_id) if key_id else None
        quota = Quota.objects.filter(name=name, scope=scope, key=key, model=model).first()
        before = _bounds(quota)
        if quota is not None and before == {"limit": limit, "burst": burst}:
            return quota
        is_new = quota is None
        quota = quota or Quota(tenant=tenant, name=name, scope=scope, key=key, model=model)
        quota.limit, quota.burst = limit, burst
        quota.full_clean()
        quota.save(force_insert=is_new, update_fields=None if is_new else ["limit", "burst", "updated_at"])
        _audit(quota, "quota.set", actor, before, _bounds(quota))
    return quota


def quota_remove(*, tenant_id: UUID, quota_id: UUID, actor: str) -> None:
    """Raises TenantUnknown, TenantClosed, QuotaUnknown."""
    with tenant_scope(tenant_id):
        tenant_lock(tenant_id)
        quota = Quota.objects.select_related("key").filter(id=quota_id).first()
        if quota is None:
            raise QuotaUnknown(f"tenant {tenant_id} has no quota {quota_id}")
        _audit(quota, "quota.remove", actor, _bounds(quota), _bounds(None))
        quota.delete()


def tenant_weight_set(*, tenant_id: UUID, weight: Decimal, actor: str) -> Tenant:
    """0.01 to 100: twice the weight is twice the share. Raises TenantUnknown, TenantClosed,
    ValidationError."""
    with tenant_scope(tenant_id):
        tenant = tenant_lock(tenant_id)
        if tenant.weight == weight:
            return tenant
        before, tenant.weight = tenant.weight, weight
        tenant.clean_fields()
        tenant.save(update_fields=["weight"])
        audit_write(
            tenant_id=tenant_id,
            actor=actor,
            action="tenant.weight",
            target=tenant.slug,
            diff={"before": f"{before:.2f}", "after": f"{weight:.2f}"},
        )
    return tenant


def tenant_consents_set(
    *, tenant_id: UUID, accepts_smaller_model: bool, accepts_batch: bool, actor: str
) -> Tenant:
    """What the tenant takes instead of a refusal under pressure. Raises TenantUnknown, TenantClosed."""
    after = {"accepts_smaller_model": accepts_smaller_model, "accepts_batch": accepts_batch}
    return tenant_fields_set(tenant_id=tenant_id, after=after, action="tenant.consents", actor=actor)


def _bounds(quota: Quota | None) -> dict[str, int | None]:
    if quota is None:
        return {"limit": None, "burst": None}
    return {"limit": quota.limit, "burst": quota.burst}


def _audit(
    quota: Quota, action: str, actor: str, before: dict[str, int | None], after: dict[str, int | None]
) -> None:
    diff: dict[str, Value] = {"scope": quota.scope, "subject": quota.subject, **change(before, after)}
    audit_write(tenant_id=quota.tenant_id, actor=actor, action=action, target=quota.name, diff=diff)
