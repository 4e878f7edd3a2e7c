"""Migration operations for row security, grants, append-only tables and change notices.

Every app's migrations use these, so one place says what each database role may do. None of the roles is
superuser or has BYPASSRLS; with FORCE even the owner sees no tenant row.
"""

from collections.abc import Sequence
from typing import Any, Literal

from django.db.migrations import RunSQL

from config.environment import role_prefix

Role = Literal["app", "operator", "gateway"]
Statement = str | tuple[str, dict[str, Any] | list[Any] | tuple[Any, ...] | None]  # as RunSQL takes them

ROLES: tuple[Role, ...] = ("app", "operator", "gateway")
CURRENT_TENANT = "(SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)"


def role_name(role: Role) -> str:
    return f"{role_prefix()}_{role}"


def enable_rls(
    table: str,
    *,
    tenant_column: str = "tenant_id",
    app: Sequence[str],
    operator: Sequence[str],
    gateway: Sequence[str] = (),
    gateway_sees: Literal["all", "own"] = "own",
) -> RunSQL:
    """Row security and privileges of a tenant table.

    `app` and (with `gateway_sees="own"`) the gateway touch only rows of `app.tenant_id`, none when it is
    unset; operators touch every row; `gateway_sees="all"` lets the gateway read, never write, all rows.
    The three lists are privileges, a column list allowed: `UPDATE (revoked_at)`.
    """
    own = f"{tenant_column} = {CURRENT_TENANT}"
    statements: list[Statement] = [
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        _policy(table, "app", "ALL", own, own),
        _policy(table, "operator", "ALL", "true", "true"),
    ]
    if gateway and gateway_sees == "own":
        statements.append(_policy(table, "gateway", "ALL", own, own))
    elif gateway:
        statements.append(_policy(table, "gateway", "SELECT", "true", None))
    statements += _grants(table, app=app, operator=operator, gateway=gateway)
    undo: list[Statement] = [
        *(f"DROP POLICY IF EXISTS {role}_rows ON {table}" for role in ROLES),
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY",
        _revoke(table),
    ]
    return RunSQL(statements, undo)


def grant_global(
    table: str,
    *,
    operator: Sequence[str],
    app: Sequence[str] = (),
    gateway: Sequence[str] = (),
) -> RunSQL:
    """Privileges of a table that belongs to no tenant."""
    return RunSQL(_grants(table, app=app, operator=operator, gateway=gateway), [_revoke(table)])


def grant_update(table: str, columns: str, *, role: Role = "operator") -> RunSQL:
    """UPDATE of columns that a table got later, beside what the role may do with it already."""
    return RunSQL(
        f"GRANT UPDATE ({columns}) ON {table} TO {role_name(role)}",
        f"REVOKE UPDATE ({columns}) ON {table} FROM {role_name(role)}",
    )


def append_only(table: str) -> RunSQL:
    """Refuse UPDATE, DELETE and TRUNCATE for every role, the owner and superusers included.

    Per statement, so it refuses also when row security hides every row from the statement.
    """
    return RunSQL(
        f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only()",
        f"DROP TRIGGER append_only ON {table}",
    )


def notify_snapshot(table: str) -> RunSQL:
    """Tell the gateways that their copy of this table is stale: `NOTIFY sluice_snapshot, '<table>'`."""
    return RunSQL(
        f"CREATE TRIGGER notify_snapshot AFTER INSERT OR UPDATE OR DELETE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION sluice_notify_snapshot()",
        f"DROP TRIGGER notify_snapshot ON {table}",
    )


def functions_create() -> RunSQL:
    """The trigger functions the operations above use. Run once, by the first migration of `tenants`."""
    return RunSQL(
        [
            "CREATE FUNCTION sluice_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'append-only table %', TG_TABLE_NAME "
            "USING ERRCODE = 'restrict_violation'; END$$",
            "CREATE FUNCTION sluice_notify_snapshot() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN PERFORM pg_notify('sluice_snapshot', TG_TABLE_NAME); RETURN NULL; END$$",
        ],
        ["DROP FUNCTION sluice_append_only()", "DROP FUNCTION sluice_notify_snapshot()"],
    )


def _policy(table: str, role: Role, command: str, using: str, check: str | None) -> str:
    with_check = f" WITH CHECK ({check})" if check else ""
    return (
        f"CREATE POLICY {role}_rows ON {table} FOR {command} TO {role_name(role)} USING ({using}){with_check}"
    )


def _grants(
    table: str, *, app: Sequence[str], operator: Sequence[str], gateway: Sequence[str]
) -> list[Statement]:
    return [
        f"GRANT {', '.join(granted)} ON {table} TO {role_name(role)}"
        for role, granted in zip(ROLES, (app, operator, gateway), strict=True)
        if granted
    ]


def _revoke(table: str) -> str:
    roles = ", ".join(role_name(role) for role in ROLES)
    return f"REVOKE ALL ON {table} FROM {roles}"
