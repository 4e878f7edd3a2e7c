"""The four database roles, made by an administrator once per server. None is superuser, none bypasses RLS.

Rights on tables are given by the migrations that create them.
"""

import os
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

ROLES: Final = ("owner", "app", "operator", "gateway")
_LOCK: Final = 0x51_0C_E0  # advisory lock: two starts at once on one server take turns


class RolesError(Exception):
    """The roles cannot be made as required; the message is one line."""


def role_name(role: str) -> str:
    """`owner` → `sluice_owner`; the prefix keeps two installations on one server apart."""
    return f"{os.environ.get('SLUICE_DB_ROLE_PREFIX', 'sluice')}_{role}"


def bootstrap(admin_url: str, database: str, passwords: dict[str, str]) -> dict[str, str]:
    """Create `database` and the roles of `ROLES`, or bring their passwords up to date.

    `passwords` and the result are keyed by the short names of `ROLES`; the result holds login URLs.
    `admin_url` is a role with CREATEROLE and CREATEDB, superuser or not.
    """
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        for role in ROLES:
            _role_ensure(admin, role_name(role), passwords[role])
        _database_ensure(admin, database)
    with psycopg.connect(_with_database(admin_url, database), autocommit=True) as admin:
        _schema_open(admin, database)
    return {role: role_url(admin_url, database, role, passwords[role]) for role in ROLES}


def role_url(server_url: str, database: str, role: str, password: str) -> str:
    """`server_url` (any login on the server) with another login and database."""
    parts = urlsplit(server_url)
    address = parts.netloc.rpartition("@")[2]
    login = f"{quote(role_name(role), safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{address}", path=f"/{quote(database, safe='')}"))


def _role_ensure(admin: psycopg.Connection, name: str, password: str) -> None:
    # The verifier is computed here, so the password itself never reaches a server log.
    verifier = admin.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    row = admin.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = %s", [name]).fetchone()
    if row is not None and row[0]:
        raise RolesError(
            f"role {name} exists and may bypass row-level security: ALTER ROLE {name} NOSUPERUSER NOBYPASSRLS"
        )
    verb = sql.SQL("CREATE ROLE" if row is None else "ALTER ROLE")
    options = sql.SQL("LOGIN NOCREATEDB NOCREATEROLE PASSWORD {}").format(sql.Literal(verifier))
    admin.execute(sql.SQL("{} {} {}").format(verb, sql.Identifier(name), options))


def _database_ensure(admin: psycopg.Connection, database: str) -> None:
    if admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone() is not None:
        return
    owner = sql.Identifier(role_name("owner"))
    if admin.info.parameter_status("is_superuser") != "on":
        admin.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(owner))
    create = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0 ENCODING 'UTF8'")
    admin.execute(create.format(sql.Identifier(database), owner))


def _schema_open(admin: psycopg.Connection, database: str) -> None:
    """Everybody but the four roles stays out; only the owner may create."""
    names = sql.SQL(", ").join(sql.Identifier(role_name(role)) for role in ROLES)
    owner, target = sql.Identifier(role_name("owner")), sql.Identifier(database)
    admin.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(target))
    admin.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(target, names))
    admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    admin.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(names))
    admin.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(owner))


def _with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{quote(database, safe='')}"))
