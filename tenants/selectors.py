"""Reads of tenants, keys and quotas, for the console, commands and other apps."""

from collections.abc import Sequence
from uuid import UUID

from tenants.models import ApiKey, Quota, Tenant
from tenants.scoping import tenant_scope


def tenant_by_slug(slug: str) -> Tenant | None:
    """Operators only: row security shows the application role none."""
    return Tenant.unscoped.filter(slug=slug).first()


def key_list(*, tenant_id: UUID) -> Sequence[ApiKey]:
    """A tenant's keys, newest first, revoked ones included."""
    with tenant_scope(tenant_id):
        return list(ApiKey.objects.order_by("-created_at"))


def key_by_public_id(public_id: str) -> ApiKey | None:
    """Operators only, as above."""
    return ApiKey.unscoped.filter(public_id=public_id).first()


def quota_list(*, tenant_id: UUID) -> Sequence[Quota]:
    """All that bounds the tenant, its keys (revoked ones too), and its requests of single models."""
    with tenant_scope(tenant_id):
        return list(Quota.objects.select_related("key").order_by("scope", "key", "model", "name"))
