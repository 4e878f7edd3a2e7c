"""The database role a query runs as: the operators' inside `operator_scope()`, else the tenant-scoped one."""

from typing import Any

from django.db.models import Model

from tenants.scoping import alias_current


class RoleRouter:
    """Every alias is the same database; only the login role differs. So relations always hold."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str:
        return alias_current()

    def db_for_write(self, model: type[Model], **hints: Any) -> str:
        return alias_current()

    def allow_relation(self, left: Model, right: Model, **hints: Any) -> bool:
        return True

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return db == "owner"
