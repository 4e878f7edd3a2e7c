"""Whose rows a query may touch: one tenant's inside `tenant_scope`, everybody's for `operator_scope`.

Two layers. `Model.objects` filters by the scope and raises outside one; PostgreSQL's row security (see
`tenants.rls`) compares each row with `app.tenant_id`, which the scope sets for its transaction. The caller
alone decides the tenant: no cookie, no default.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, Literal, TypeVar
from uuid import UUID

from django.db import connections, models, transaction

Tenancy = Literal["tenant", "global"]

# Models of other people's apps cannot carry our declaration. All of these are the platform's own tables.
THIRD_PARTY_TENANCY: dict[str, Tenancy] = {
    "admin.logentry": "global",
    "auth.group": "global",
    "auth.group_permissions": "global",
    "auth.permission": "global",
    "contenttypes.contenttype": "global",
    "sessions.session": "global",
    "tenants.user_groups": "global",
    "tenants.user_user_permissions": "global",
}

ModelT = TypeVar("ModelT", bound=models.Model, covariant=True)

_tenant: ContextVar[UUID | None] = ContextVar("tenant", default=None)
_operator: ContextVar[bool] = ContextVar("operator", default=False)


class TenancyUndeclared(Exception):
    """A model does not say whether its rows belong to a tenant."""


class TenantScopeMissing(Exception):
    """Tenant rows were asked for outside a tenant scope."""


class TenantScopeConflict(Exception):
    """A scope was opened inside the scope of another tenant."""


def tenancy_of(model: type[models.Model]) -> Tenancy:
    """`tenant` or `global`; a tenant model's own class attribute, or the table of third-party models."""
    declared = getattr(model, "tenancy", None) or THIRD_PARTY_TENANCY.get(model._meta.label_lower)
    if declared not in ("tenant", "global"):
        raise TenancyUndeclared(f'{model._meta.label} declares no `tenancy` ("tenant" or "global")')
    tenancy: Tenancy = declared
    return tenancy


def tenant_current() -> UUID | None:
    return _tenant.get()


def alias_current() -> str:
    """The database alias, that is the login role, that queries run as now."""
    return "operator" if _operator.get() else "default"


@contextmanager
def operator_scope() -> Iterator[None]:
    """Run queries as the operators' role, which sees every tenant: staff pages, commands, the controller."""
    token = _operator.set(True)
    try:
        yield
    finally:
        _operator.reset(token)


@contextmanager
def tenant_scope(tenant_id: UUID) -> Iterator[None]:
    """One transaction in which only this tenant's rows exist.

    `app.tenant_id` is set with SET LOCAL semantics: it ends with the transaction, so a pooled connection
    cannot carry it to the next user. It is the transaction's first statement, so nothing in the scope is
    planned, prepared or run without it.
    """
    outer = _tenant.get()
    if outer is not None and outer != tenant_id:
        raise TenantScopeConflict(f"already inside the scope of tenant {outer}, asked for {tenant_id}")
    alias = alias_current()
    with transaction.atomic(using=alias):
        before = _setting_swap(alias, str(tenant_id))
        token = _tenant.set(tenant_id)
        try:
            yield
        finally:
            _tenant.reset(token)
        # Only on success: a rollback takes the setting with it.
        _setting_swap(alias, before)


def _setting_swap(alias: str, value: str) -> str:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(current_setting('app.tenant_id', true), ''), "
            "set_config('app.tenant_id', %s, true)",
            [value],
        )
        row: tuple[str, str] = cursor.fetchone()
    return row[0]


class TenantScopedManager(models.Manager[ModelT]):
    """Rows of the tenant in scope; without a scope it raises instead of returning anybody's."""

    def get_queryset(self) -> models.QuerySet[ModelT]:
        tenant_id = _tenant.get()
        if tenant_id is None:
            raise TenantScopeMissing(
                f"{self.model.__name__}.objects needs tenant_scope(); operators read `unscoped` instead"
            )
        field = getattr(self.model, "tenant_field", "tenant_id")
        return super().get_queryset().filter(**{field: tenant_id})


class TenantModel(models.Model):
    """Base of models whose rows belong to a tenant: `objects` is scoped, `unscoped` the plain default."""

    tenancy: ClassVar[Tenancy] = "tenant"
    tenant_field: ClassVar[str] = "tenant_id"

    objects = TenantScopedManager()
    unscoped = models.Manager()  # noqa: DJ012 (a second manager, not a field)

    class Meta:
        abstract = True
        default_manager_name = "unscoped"
