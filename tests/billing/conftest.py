"""Fixtures of the billing tests: a shop, connections by role, and a stage for the controller."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from channels.layers import get_channel_layer

from devservices.valkey import ValkeyServer
from modelsvc.fleet_contracts import FLEET_GROUP
from tests.billing.shop import Shop, price
from tests.billing.stage import Stage
from tests.conftest import Database
from tests.factories import tenant_create


@pytest.fixture
def shop(database: Database) -> Shop:
    price(model="m")
    return Shop(database, tenant_create("a").id, tenant_create("b").id)


@pytest.fixture
async def gateway(shop: Shop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection with the gateway's role, as its spool uses it."""
    async with await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as conn:
        yield conn


@pytest.fixture
async def operator(shop: Shop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(shop.database.operator_url, autocommit=True) as conn:
        yield conn


@pytest.fixture
async def stage(shop: Shop, valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Stage]:
    layer: Any = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(FLEET_GROUP, channel)
    stage = Stage(shop, valkey.url, tmp_path, layer, channel)
    await stage.dispatcher.start()
    await stage.worker.start()
    yield stage
    await stage.worker.stop()
    await stage.dispatcher.stop()
    await layer.group_discard(FLEET_GROUP, channel)
    await layer.close_pools()


@pytest.fixture
async def billed(shop: Shop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection that is notified of each statement that adds usage events."""
    async with await psycopg.AsyncConnection.connect(shop.database.admin_url, autocommit=True) as conn:
        await conn.execute(
            "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN PERFORM pg_notify('billed', ''); RETURN NULL; END$$"
        )
        await conn.execute(
            "CREATE TRIGGER tell AFTER INSERT ON billing_usageevent FOR EACH ROW EXECUTE FUNCTION tell()"
        )
        await conn.execute("LISTEN billed")
        yield conn
