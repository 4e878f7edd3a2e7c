"""One gateway process for most tests of this folder; none may leave anything behind in it."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

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
