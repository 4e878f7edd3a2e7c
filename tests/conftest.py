"""Real PostgreSQL and Valkey for every test that asks: one server a session, one cloned database a test.

Django's own test databases are not used: its aliases are pointed at the clone, each with its production role.
A server that already runs on this machine is never used: what the environment says of one is dropped.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from asgiref.sync import SyncToAsync
from channels.layers import channel_layers
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.core.management import call_command
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg import sql
from pytest_django.plugin import DjangoDbBlocker

from config.databases import database_settings
from devservices.postgres import PostgresServer
from devservices.roles import ROLES, bootstrap
from devservices.valkey import ValkeyServer
from tenants.models import User
from tenants.scoping import operator_scope

for _name in ("DATABASE_URL", "REDIS_URL", *(name for name in os.environ if name.startswith("SLUICE_DB_"))):
    os.environ.pop(_name, None)
os.environ["SLUICE_KEY_PEPPER"] = secrets.token_hex(32)
os.environ["SLUICE_MASTER_KEY"] = secrets.token_hex(32)

TEMPLATE = "sluice_template"
ALIASES = {"default": "app", "operator": "operator", "owner": "owner"}


class QuickPasswordHasher(PBKDF2PasswordHasher):
    """Production's algorithm without its million rounds: a real server still accepts these passwords."""

    iterations = 1


settings.PASSWORD_HASHERS = [f"{__name__}.{QuickPasswordHasher.__name__}"]


@dataclass(frozen=True, slots=True)
class Database:
    """A migrated database of its own, with a login URL per role. `admin_url` is the superuser's."""

    name: str
    admin_url: str = field(repr=False)
    owner_url: str = field(repr=False)
    app_url: str = field(repr=False)
    operator_url: str = field(repr=False)
    gateway_url: str = field(repr=False)

    def environment(self) -> dict[str, str]:
        """Variables that point a Sluice process at this database."""
        return {f"SLUICE_DB_{role.upper()}": getattr(self, f"{role}_url") for role in ROLES}


@pytest.fixture(scope="session")
def django_db_setup() -> None:
    """Replaces pytest-django's own test databases; see `database`."""


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer.start(tmp_path_factory.mktemp("postgres"), durable=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A Valkey of this session's own; REDIS_URL and the Channels layer point at it."""
    server = ValkeyServer.start(tmp_path_factory.mktemp("valkey"), durable=False)
    os.environ["REDIS_URL"] = server.url
    cast(dict[str, Any], settings.CHANNEL_LAYERS["default"]["CONFIG"])["hosts"] = [server.url]
    channel_layers.backends.clear()
    yield server
    channel_layers.backends.clear()
    server.stop()


@pytest.fixture(scope="session")
def database_template(postgres: PostgresServer, django_db_blocker: DjangoDbBlocker) -> dict[str, str]:
    """Login URLs, by role, of the migrated database that tests clone."""
    urls = bootstrap(postgres.url, TEMPLATE, {role: secrets.token_urlsafe(24) for role in ROLES})
    with django_db_blocker.unblock():
        _aliases_point(urls)
        call_command("migrate", database="owner", verbosity=0)
        aliases_close()
    return urls


@contextmanager
def database_clone(
    postgres: PostgresServer, template: Mapping[str, str], blocker: DjangoDbBlocker
) -> Iterator[Database]:
    """A fresh clone of the migrated template, while Django's aliases point at it."""
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        # Half the time of the default strategy, which writes every page to the log as well.
        clone = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {} STRATEGY FILE_COPY")
        owner = urlsplit(template["owner"]).username or ""
        admin.execute(clone.format(*map(sql.Identifier, (name, TEMPLATE, owner))))
    urls = {role: _with_database(url, name) for role, url in template.items()}
    with blocker.unblock():
        _aliases_point(urls)
        try:
            yield Database(
                name=name,
                admin_url=_with_database(postgres.url, name),
                **{f"{role}_url": url for role, url in urls.items()},
            )
        finally:
            aliases_close()
            with psycopg.connect(postgres.url, autocommit=True) as admin:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database(
    postgres: PostgresServer,
    database_template: Mapping[str, str],
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Database]:
    """A database of this test's own; Django's aliases and the SLUICE_DB_ variables point at it."""
    with database_clone(postgres, database_template, django_db_blocker) as clone:
        for variable, url in clone.environment().items():
            monkeypatch.setenv(variable, url)
        yield clone


@pytest.fixture
def admin_user(database: Database) -> User:
    """A superuser `admin` with the password `admin-password`."""
    with operator_scope():
        return User.objects.create_superuser("admin", "admin@example.com", "admin-password")


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _aliases_point(urls: Mapping[str, str]) -> None:
    for alias, role in ALIASES.items():
        variable = f"SLUICE_DB_{role.upper()}"
        fresh = database_settings(urls[role], variable=variable, pooled=alias != "owner")
        if alias not in connections.settings:
            connections.settings[alias] = {**connections.settings["default"]}
        connections.settings[alias].update(fresh)


def aliases_close() -> None:
    """Close this thread's connections, those of the thread async code runs the ORM in, and the pools."""
    connections.close_all()
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()
    for alias in ALIASES:
        connection = connections[alias]
        if isinstance(connection, DatabaseWrapper) and "pool" in connection.settings_dict["OPTIONS"]:
            connection.close_pool()
