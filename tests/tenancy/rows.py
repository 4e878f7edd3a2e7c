"""A row of any model for any tenant, written past every rule, so that the rules can be tried on it."""

import json
import secrets
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
from django.apps import apps
from django.db import models
from psycopg import sql

from tenants.scoping import TenantModel, tenancy_of

# Where plain values would break a check constraint.
VALUES: dict[str, dict[str, Any]] = {
    "tenants.Quota": {"key_id": None, "model": "", "burst": None},
    "billing.UsageEvent": {
        "billable_prompt_tokens": 0,
        "billable_cached_tokens": 0,
        "billable_output_tokens": 0,
        "lost_cause": "",
    },
}


def tenant_models() -> list[type[TenantModel]]:
    found = []
    for model in apps.get_models(include_auto_created=True):
        if tenancy_of(model) == "tenant":
            assert issubclass(model, TenantModel), model
            found.append(model)
    return found


def tenant_column(model: type[TenantModel]) -> str:
    return model.tenant_field


def row_insert(admin: psycopg.Connection[Any], model: type[TenantModel], tenant_id: UUID) -> Any:
    """The new row's primary key. `admin` is a superuser: foreign keys and triggers are off."""
    values: dict[str, Any] = {}
    for field in model._meta.local_concrete_fields:
        if field.name == "tenant" or field.column == tenant_column(model):
            values[tenant_column(model)] = tenant_id
        elif not isinstance(field, models.AutoField):
            values[str(field.column)] = _value(field)
    values |= VALUES.get(model._meta.label, {})
    insert = sql.SQL("INSERT INTO {} ({}) VALUES ({}) RETURNING {}").format(
        sql.Identifier(model._meta.db_table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(sql.Placeholder() * len(values)),
        sql.Identifier(str(model._meta.pk.column)),
    )
    admin.execute("SET session_replication_role = replica")
    row = admin.execute(insert, list(values.values())).fetchone()
    admin.execute("SET session_replication_role = origin")
    assert row is not None
    return row[0]


def row_read(admin: psycopg.Connection[Any], model: type[TenantModel], key: Any) -> Any:
    select = sql.SQL("SELECT * FROM {} WHERE {} = %s").format(
        sql.Identifier(model._meta.db_table), sql.Identifier(str(model._meta.pk.column))
    )
    return admin.execute(select, [key]).fetchone()


def _value(field: "models.Field[Any, Any]") -> Any:
    kind = field.get_internal_type()
    if field.choices:
        return next(iter(field.flatchoices))[0]
    if kind in ("UUIDField", "ForeignKey"):
        return uuid4()
    if kind in ("CharField", "SlugField", "TextField"):
        return secrets.token_hex(32)[: field.max_length or 32]
    if kind == "BinaryField":
        return secrets.token_bytes(32)
    if kind == "DateTimeField":
        return datetime.now(UTC)
    if kind == "JSONField":
        return json.dumps({})
    if kind == "BooleanField":
        return False
    if kind == "ArrayField":
        return ["x"]
    if kind == "DecimalField":
        return Decimal(1)
    if "Integer" in kind:
        return secrets.randbelow(30_000) + 1
    raise NotImplementedError(f"say in rows.py what a {kind} may hold ({field})")
