"""Every model there is, against every role: whose rows it sees, and what it may do to them."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.apps import apps
from django.db import ProgrammingError, connections, models, transaction
from psycopg import sql
from psycopg.types.json import Jsonb

from config.checks import tenancy_check
from tenants import services
from tenants.models import Tenant, TenantDataKey
from tenants.rls import role_name
from tenants.scoping import TenantModel, TenantScopeMissing, operator_scope, tenancy_of, tenant_scope
from tests.conftest import Database
from tests.factories import tenant_create
from tests.tenancy.rows import row_insert, row_read, tenant_column, tenant_models

MODELS = pytest.mark.parametrize("model", tenant_models(), ids=lambda model: model._meta.label)
GATEWAY_READS = {
    "tenants_tenant",
    "tenants_tenantdatakey",
    "tenants_apikey",
    "tenants_quota",
}  # of every tenant
GATEWAY_KEEPS = {"billing_idempotencyrecord"}  # its own records of requests in flight


def test_every_model_declares_its_tenancy() -> None:
    for model in apps.get_models(include_auto_created=True):
        assert tenancy_of(model) in ("tenant", "global"), model
    assert tenancy_check(None) == []


def test_a_model_that_declares_nothing_is_an_error() -> None:
    class Undeclared(models.Model):
        class Meta:
            app_label = "tenants"

        def __str__(self) -> str:
            return "undeclared"

    try:
        assert [error.id for error in tenancy_check(None)] == ["sluice.E001"]
    finally:
        del apps.all_models["tenants"]["undeclared"]
        apps.clear_cache()


def test_no_role_is_above_row_security(database: Database) -> None:
    with psycopg.connect(database.admin_url) as admin:
        rows = admin.execute(
            "SELECT rolname, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole "
            "FROM pg_roles WHERE rolname LIKE %s",
            [role_name("app").removesuffix("app") + "%"],
        ).fetchall()
        members = admin.execute(
            "SELECT count(*) FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member "
            "WHERE r.rolname LIKE %s",
            [role_name("app").removesuffix("app") + "%"],
        ).fetchone()
    assert len(rows) == 4
    assert all(not any(powers) for _, *powers in rows)
    assert members == (0,)


@pytest.mark.parametrize("role", ["app", "operator", "gateway"])
def test_only_the_owner_defines_tables(database: Database, role: str) -> None:
    with psycopg.connect(getattr(database, f"{role}_url"), autocommit=True) as conn:
        for statement in (
            "CREATE TABLE mine (id int)",
            "ALTER TABLE tenants_tenant DISABLE ROW LEVEL SECURITY",
            "DROP POLICY app_rows ON tenants_tenant",
            "ALTER TABLE tenants_auditentry DISABLE TRIGGER append_only",
            "TRUNCATE tenants_member",
            "SET session_replication_role = replica",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)


def test_every_table_with_a_tenant_forces_row_security(database: Database) -> None:
    declared = {model._meta.db_table for model in tenant_models()}
    with psycopg.connect(database.admin_url) as admin:
        with_column = {
            table
            for (table,) in admin.execute(
                "SELECT table_name FROM information_schema.columns "
                "WHERE table_schema = 'public' AND column_name = 'tenant_id'"
            )
        }
        forced = {
            table
            for (table,) in admin.execute(
                "SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity AND relkind = 'r'"
            )
        }
        policies = {
            (table, role, qual)
            for table, role, qual in admin.execute("SELECT tablename, roles[1]::text, qual FROM pg_policies")
        }
        everybody = admin.execute(
            "SELECT count(*) FROM pg_policies WHERE 'public' = ANY (roles) OR cardinality(roles) <> 1"
        ).fetchone()
    assert with_column <= declared
    assert declared == forced
    assert everybody == (0,)
    for table in declared:
        quals = {role: qual for name, role, qual in policies if name == table}
        assert "app.tenant_id" in quals[role_name("app")], table
        assert quals[role_name("operator")] == "true", table
        if table not in GATEWAY_READS:
            assert "app.tenant_id" in quals.get(role_name("gateway"), "app.tenant_id"), table


def test_tenants_rows_are_found_by_an_index_and_no_index_repeats_another(database: Database) -> None:
    with psycopg.connect(database.admin_url) as admin:
        indexes: dict[str, list[list[str]]] = {}
        for table, columns in admin.execute(
            "SELECT indrelid::regclass::text, array(SELECT pg_get_indexdef(indexrelid, n, true) "
            "|| coalesce((SELECT opcname FROM pg_opclass WHERE oid = indclass[n - 1] AND NOT opcdefault), '')"
            " FROM generate_series(1, indnkeyatts) AS n) FROM pg_index WHERE indpred IS NULL"
        ):
            indexes.setdefault(table, []).append(columns)
    for model in tenant_models():
        columns_of = indexes[model._meta.db_table]
        assert any(columns[0] == tenant_column(model) for columns in columns_of), model
        repeated = [
            short
            for short in columns_of
            for long in columns_of
            if len(short) < len(long) and long[: len(short)] == short
        ]
        assert repeated == [], model


@pytest.fixture
def tenants(database: Database) -> tuple[UUID, UUID]:
    return tenant_create().id, tenant_create().id


def _rows(database: Database, model: type[TenantModel], tenants: tuple[UUID, UUID]) -> tuple[Any, Any]:
    """Primary keys of a row of each of the two tenants."""
    if model in (Tenant, TenantDataKey):  # there already, and the tenant's id is the key
        return tenants
    with psycopg.connect(database.admin_url) as admin:
        return row_insert(admin, model, tenants[0]), row_insert(admin, model, tenants[1])


@MODELS
def test_a_tenant_reaches_no_row_of_another(
    database: Database, tenants: tuple[UUID, UUID], model: type[TenantModel]
) -> None:
    mine, theirs = _rows(database, model, tenants)
    table, key = model._meta.db_table, model._meta.pk.column
    with psycopg.connect(database.admin_url) as admin:
        before = row_read(admin, model, theirs)
        assert before is not None

    # when tenant A reads, by the scoped manager, by the plain one and by SQL: only its own
    with tenant_scope(tenants[0]):
        scoped = set(model.objects.values_list("pk", flat=True))
        plain = set(model._default_manager.values_list("pk", flat=True))
        with connections["default"].cursor() as cursor:
            cursor.execute(f"SELECT {key} FROM {table}")
            raw = {row[0] for row in cursor.fetchall()}
    assert mine in scoped
    assert theirs not in plain
    assert scoped == plain == raw

    # when it writes: nothing of tenant B changes
    for write in (
        lambda: model._default_manager.filter(pk=theirs).update(**{tenant_column(model): tenants[0]}),
        lambda: model._default_manager.filter(pk=theirs)._raw_delete("default"),
        lambda: _execute(
            f"UPDATE {table} SET {tenant_column(model)} = %s WHERE {key} = %s", tenants[0], theirs
        ),
        lambda: _execute(f"DELETE FROM {table} WHERE {key} = %s", theirs),
    ):
        assert _rows_written(tenants[0], write) == 0
    with psycopg.connect(database.admin_url) as admin:
        assert row_read(admin, model, theirs) == before

    # when it gives its own row away, or writes one in B's name: refused
    with pytest.raises(ProgrammingError) as refused_move, tenant_scope(tenants[0]):
        _execute(f"UPDATE {table} SET {tenant_column(model)} = %s WHERE {key} = %s", tenants[1], mine)
    assert isinstance(refused_move.value.__cause__, psycopg.errors.InsufficientPrivilege)
    with psycopg.connect(database.app_url) as app:
        app.execute("SELECT set_config('app.tenant_id', %s, true)", [str(tenants[0])])
        columns = ", ".join(f'"{field.column}"' for field in model._meta.local_concrete_fields)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute(
                f"INSERT INTO {table} ({columns}) "
                f"SELECT {columns} FROM jsonb_populate_record(null::{table}, %s)",
                [Jsonb({tenant_column(model): str(tenants[1])})],
            )


def _rows_written(tenant_id: UUID, write: Callable[[], int]) -> int:
    """Rows the write touched as the tenant; 0 as well when the role may not write the table at all."""
    try:
        with tenant_scope(tenant_id):
            return write()
    except ProgrammingError as refused:
        if isinstance(refused.__cause__, psycopg.errors.InsufficientPrivilege):
            return 0
        raise


def _execute(statement: str, *parameters: Any) -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


@MODELS
def test_without_a_scope_there_are_no_rows(
    database: Database, tenants: tuple[UUID, UUID], model: type[TenantModel]
) -> None:
    _rows(database, model, tenants)
    with pytest.raises(TenantScopeMissing):
        model.objects.count()
    assert model._default_manager.count() == 0
    with psycopg.connect(database.app_url) as app:
        assert app.execute(f"SELECT count(*) FROM {model._meta.db_table}").fetchone() == (0,)
        app.execute("SELECT set_config('app.tenant_id', '', false)")
        assert app.execute(f"SELECT count(*) FROM {model._meta.db_table}").fetchone() == (0,)
    with psycopg.connect(database.owner_url) as owner:  # FORCE: the owner neither
        assert owner.execute(f"SELECT count(*) FROM {model._meta.db_table}").fetchone() == (0,)


@MODELS
def test_operators_see_every_tenant(
    database: Database, tenants: tuple[UUID, UUID], model: type[TenantModel]
) -> None:
    rows = _rows(database, model, tenants)
    with operator_scope():
        assert set(rows) <= set(model._default_manager.values_list("pk", flat=True))
        with pytest.raises(TenantScopeMissing):
            model.objects.count()
        with tenant_scope(tenants[0]):
            seen = set(model.objects.values_list("pk", flat=True))
    assert rows[0] in seen
    assert rows[1] not in seen


@MODELS
def test_the_gateway_writes_no_tenant_data_but_usage(
    database: Database, tenants: tuple[UUID, UUID], model: type[TenantModel]
) -> None:
    rows = _rows(database, model, tenants)
    table = model._meta.db_table
    with psycopg.connect(database.gateway_url, autocommit=True) as gateway:
        granted = {
            privilege
            for privilege in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
            for (has,) in gateway.execute("SELECT has_table_privilege(%s, %s)", [table, privilege])
            if has
        }
        if table in GATEWAY_READS:
            assert granted == {"SELECT"}
            seen = {key for (key,) in gateway.execute(f"SELECT {model._meta.pk.column} FROM {table}")}
            assert set(rows) <= seen
        elif table in GATEWAY_KEEPS:
            assert granted == {"SELECT", "INSERT", "DELETE"}  # and UPDATE of some columns
            assert gateway.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
            assert gateway.execute(f"DELETE FROM {table}").rowcount == 0
        else:
            assert granted <= {"SELECT", "INSERT"}
            assert model._meta.app_label != "tenants" or granted == set()
        statements = [f"UPDATE {table} SET {tenant_column(model)} = NULL"]
        statements += [] if table in GATEWAY_KEEPS else [f"DELETE FROM {table}"]
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                gateway.execute(statement)


def test_append_only_rows_are_refused_to_everybody(database: Database, tenants: tuple[UUID, UUID]) -> None:
    with psycopg.connect(database.admin_url) as admin:
        tables = {
            table
            for (table,) in admin.execute(
                "SELECT tgrelid::regclass::text FROM pg_trigger "
                "WHERE tgname = 'append_only' AND tgenabled = 'O'"
            )
        }
    assert "tenants_auditentry" in tables
    for model in apps.get_models():
        table = model._meta.db_table
        if table not in tables:
            continue
        for role in ("app", "operator", "gateway"):
            with psycopg.connect(getattr(database, f"{role}_url"), autocommit=True) as conn:
                for verb in ("UPDATE", "DELETE"):
                    assert conn.execute("SELECT has_table_privilege(%s, %s)", [table, verb]).fetchone() == (
                        False,
                    )
        for url in (database.owner_url, database.admin_url):
            with psycopg.connect(url, autocommit=True) as conn:
                for statement in (
                    f"UPDATE {table} SET {model._meta.pk.column} = {model._meta.pk.column}",
                    f"DELETE FROM {table}",
                    f"TRUNCATE {table}",
                ):
                    with pytest.raises(psycopg.errors.RestrictViolation):
                        conn.execute(statement)


def test_global_tables_are_not_written_by_the_tenant_role(database: Database) -> None:
    """But for sessions, and what signing in writes to the user's own row."""
    allowed = {
        "django_session": {"INSERT", "UPDATE", "DELETE"},
    }
    with psycopg.connect(database.app_url) as app:
        for model in apps.get_models(include_auto_created=True):
            if tenancy_of(model) == "tenant":
                continue
            table = model._meta.db_table
            granted = {
                verb
                for verb in ("INSERT", "UPDATE", "DELETE")
                for (has,) in app.execute(
                    sql.SQL("SELECT has_table_privilege({}, {})").format(
                        sql.Literal(table), sql.Literal(verb)
                    )
                )
                if has
            }
            assert granted == allowed.get(table, set()), table
        updatable = app.execute(
            "SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute "
            "WHERE attrelid = 'tenants_user'::regclass AND attnum > 0 "
            "AND has_column_privilege('tenants_user', attname, 'UPDATE')"
        ).fetchone()
    assert updatable == (["last_login"],)


# Column lists: what a row is stays as it was written; only its state moves.
UPDATABLE = {
    "tenants_tenant": {
        *("status", "zero_retention", "max_output_tokens", "continues_streams"),
        *("weight", "accepts_smaller_model", "accepts_batch"),
    },
    "tenants_apikey": {"revoked_at", "max_open_requests"},
    "tenants_member": set(),
    "modelsvc_model": {"name", "owned_by"},
    "modelsvc_modelversion": {"state"},
    "modelsvc_modelroute": {"version_id", "max_output_tokens", "smaller_id", "revision", "updated_at"},
    "modelsvc_deployment": {"replicas", "revision", "updated_at"},
    "modelsvc_upstream": {"is_enabled", "master_key_id", "sealed_key", "updated_at"},
    "tenants_quota": {"limit", "burst", "updated_at"},
}
REMOVABLE = {"modelsvc_upstream", "tenants_quota"}


@pytest.mark.parametrize("role", ["app", "operator"])
def test_what_names_a_row_is_never_rewritten_or_deleted(database: Database, role: str) -> None:
    with psycopg.connect(getattr(database, f"{role}_url")) as conn:
        for table, columns in UPDATABLE.items():
            updatable = {
                column
                for (column,) in conn.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                    "AND has_column_privilege(attrelid, attnum, 'UPDATE')",
                    [table],
                )
            }
            assert updatable <= columns, table
            assert role == "app" or updatable == columns, table
        for table in (*UPDATABLE, "tenants_user", "auth_group", "django_admin_log"):
            is_removable = role == "operator" and table in REMOVABLE
            assert conn.execute("SELECT has_table_privilege(%s, 'DELETE')", [table]).fetchone() == (
                is_removable,
            )


def test_the_tenant_role_makes_no_tenant(database: Database) -> None:
    with pytest.raises(ProgrammingError), transaction.atomic():
        services.tenant_create(slug="mallory", name="Mallory", actor="mallory")
