"""The database roles: what they may not be, and that making them again is harmless."""

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from devservices.postgres import PostgresServer
from devservices.roles import ROLES, RolesError, bootstrap, role_name


@pytest.fixture
def database(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a database that is not there yet, with roles of its own."""
    name = f"roles_{secrets.token_hex(4)}"
    monkeypatch.setenv("SLUICE_DB_ROLE_PREFIX", name)
    yield name
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        for role in ROLES:
            admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role_name(role))))


def _passwords() -> dict[str, str]:
    return {role: f"{secrets.token_hex(8)}/@:" for role in ROLES}


def test_roles_log_in_and_none_bypasses_row_security(postgres: PostgresServer, database: str) -> None:
    urls = bootstrap(postgres.url, database, _passwords())

    for role, url in urls.items():
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, current_user, current_database()"
                " FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
        assert row == (False, False, False, False, role_name(role), database)


def test_only_the_owner_creates_tables(postgres: PostgresServer, database: str) -> None:
    urls = bootstrap(postgres.url, database, _passwords())

    with psycopg.connect(urls["owner"]) as connection:
        connection.execute("CREATE TABLE belongings ()")
    for role in ("app", "operator", "gateway"):
        with psycopg.connect(urls[role]) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE intrusion ()")


def test_making_them_again_brings_new_passwords_and_keeps_the_data(
    postgres: PostgresServer, database: str
) -> None:
    with psycopg.connect(bootstrap(postgres.url, database, _passwords())["owner"]) as connection:
        connection.execute("CREATE TABLE kept ()")

    urls = bootstrap(postgres.url, database, _passwords())

    with psycopg.connect(urls["owner"]) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_an_administrator_need_not_be_superuser(postgres: PostgresServer, database: str) -> None:
    admin_name = f"{database}_admin"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN CREATEDB CREATEROLE PASSWORD 'admin'").format(
                sql.Identifier(admin_name)
            )
        )
    admin_url = f"postgresql://{admin_name}:admin@127.0.0.1:{postgres.port}/postgres"

    urls = bootstrap(admin_url, database, _passwords())
    again = bootstrap(admin_url, database, _passwords())

    assert urls.keys() == again.keys() == set(ROLES)
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        for role in ROLES:
            admin.execute(
                sql.SQL("REVOKE {} FROM {} CASCADE").format(
                    sql.Identifier(role_name(role)), sql.Identifier(admin_name)
                )
            )
        admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(admin_name)))
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(admin_name)))


def test_a_role_that_bypasses_row_security_is_refused(postgres: PostgresServer, database: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} BYPASSRLS").format(sql.Identifier(role_name("app"))))

    with pytest.raises(RolesError, match="NOBYPASSRLS"):
        bootstrap(postgres.url, database, _passwords())
