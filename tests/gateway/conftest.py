"""One gateway process for most tests of this folder; none may leave anything behind in it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest
import pytest_asyncio
from pytest_django.plugin import DjangoDbBlocker

from devservices.postgres import PostgresServer
from devservices.valkey import ValkeyServer
from tests.conftest import Database, aliases_close, database_clone
from tests.gateway.durable import GRACE_S, Fleet, fleet_started
from tests.gateway.harness import QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import echo


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared_gateway() -> AsyncIterator[GatewayProcess]:
    async with gateway_started(limits=QUICK) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="package")
async def gateway(shared_gateway: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    """The shared process; the test fails when it leaves anything behind in it."""
    shared_gateway.peers_reset()
    await shared_gateway.ready()
    yield shared_gateway
    await shared_gateway.idle()


@pytest.fixture
def echoing(gateway: GatewayProcess) -> Iterator[GatewayProcess]:
    """The worker answers every request by itself."""
    with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
        yield gateway


@pytest.fixture(scope="package")
def shared_database(
    postgres: PostgresServer, database_template: Mapping[str, str], django_db_blocker: DjangoDbBlocker
) -> Iterator[Database]:
    with database_clone(postgres, database_template, django_db_blocker) as database:
        yield database


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared_fleet(shared_database: Database, valkey: ValkeyServer) -> AsyncIterator[Fleet]:
    """Two gateways over one PostgreSQL and one Valkey."""
    limits = {"resume_grace_s": GRACE_S}
    async with fleet_started(
        shared_database, valkey, gateways=2, customers=400, strict=4, limits=limits
    ) as fleet:
        await asyncio.to_thread(aliases_close)  # other tests have databases of their own meanwhile
        yield fleet


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(shared_fleet: Fleet) -> AsyncIterator[Fleet]:
    """As a customer of its own sees it; the test fails when it leaves anything behind in a gateway."""
    for gateway in shared_fleet.gateways:
        gateway.peers_reset()
        await gateway.ready()
    yield shared_fleet.of(shared_fleet.others.pop())
    for gateway in shared_fleet.gateways:
        await gateway.idle()
