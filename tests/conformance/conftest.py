"""Real clients, a front door under each server, and a database of this folder's own."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from pytest_django.plugin import DjangoDbBlocker

from devservices.postgres import PostgresServer
from devservices.valkey import ValkeyServer
from tests.conformance.deployment import Deployment, deployment_make
from tests.conformance.fronts import Front, front_open
from tests.conformance.node import NodeClients, NodeMissing, node_find, node_started, packages_install
from tests.conformance.servers import SERVERS
from tests.conftest import database_clone


@pytest.fixture(scope="package")
def deployment(
    postgres: PostgresServer,
    valkey: ValkeyServer,
    database_template: Mapping[str, str],
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Deployment]:
    with (
        tempfile.TemporaryDirectory(prefix="sluice-cf-", dir="/tmp", ignore_cleanup_errors=True) as name,
        database_clone(postgres, database_template, django_db_blocker) as database,
    ):
        yield deployment_make(Path(name), database, valkey.url)


@pytest_asyncio.fixture(
    scope="package", loop_scope="package", params=SERVERS, ids=[server.name for server in SERVERS]
)
async def served(request: pytest.FixtureRequest, deployment: Deployment) -> AsyncIterator[Front]:
    """One for each server; a module that needs only one parametrises this indirectly."""
    async with front_open(deployment, request.param) as front:
        yield front


@pytest_asyncio.fixture(loop_scope="package")
async def front(served: Front) -> AsyncIterator[Front]:
    """The test fails when it leaves a request behind in the gateway."""
    await served.reset()
    yield served
    await served.idle()


@pytest.fixture(scope="session")
def node_modules() -> tuple[str, Path]:
    """Node and the installed clients. Where there is no node the tests are skipped; under CI they fail."""
    cache = Path(os.environ.get("SLUICE_TEST_CACHE", "var/test-cache")).resolve()
    try:
        node = node_find()
        return node, packages_install(node, cache)
    except NodeMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def node(
    node_modules: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[NodeClients]:
    async with node_started(*node_modules, tmp_path_factory.mktemp("js")) as clients:
        yield clients
