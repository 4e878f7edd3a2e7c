"""Real clients, a front door under each server, and a database of this folder's own."""

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
from tests.conformance.node import NodeClients, node_started
from tests.conformance.servers import SERVERS
from tests.conformance.stack import Stack, stack_start
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


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeClients]:
    async with node_started(tmp_path_factory.mktemp("js")) as clients:
        yield clients


@pytest.fixture(scope="package")
def stack(deployment: Deployment) -> Iterator[Stack]:
    with stack_start(deployment) as running:
        yield running
