"""Keys, routes and usage with a real PostgreSQL, which may go away."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import psycopg
import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async

from billing.contracts import Price
from billing.pricing import cost_micro_usd
from gpuworker.manifest import manifest_load
from modelsvc.services import route_switch, version_publish
from tenants import services
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, price_create, tenant_create
from tests.gateway.harness import QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import WorkerPeer, echo, socket_address
from tests.gateway.proxy import Relay
from tests.gateway.weights import TEMPLATE, store_make

pytestmark = pytest.mark.asyncio(loop_scope="package")

P = ParamSpec("P")
T = TypeVar("T")

MESSAGES = [{"role": "user", "content": "hello"}]


def orm(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    return sync_to_async(function)


@dataclass
class Setup:
    gateway: GatewayProcess
    database: Database
    relay: Relay
    tenant_id: Any
    key_id: Any
    key: str

    async def chat(self, model: str = "tiny", **fields: Any) -> Any:
        body = {"model": model, "messages": MESSAGES, **fields}
        return await self.gateway.post("/v1/chat/completions", body, f"authorization: Bearer {self.key}")

    async def status_becomes(self, status: int, *, within_s: float, model: str = "tiny") -> float:
        """How long it took."""
        started = time.monotonic()
        while (response := await self.chat(model)).status != status:
            assert time.monotonic() - started < within_s, response.body
            await asyncio.sleep(0.01)
        return time.monotonic() - started

    async def rows(self, query: str, count: int) -> list[Any]:
        """Waits until there are `count` rows."""
        async with await psycopg.AsyncConnection.connect(self.database.operator_url, autocommit=True) as conn:
            deadline = time.monotonic() + 15
            while len(rows := await (await conn.execute(query)).fetchall()) != count:
                assert time.monotonic() < deadline, rows
                await asyncio.sleep(0.05)
            return rows


def rows_make(gateway: GatewayProcess) -> tuple[Any, Any, str]:
    tenant = tenant_create()
    issued = key_issue(tenant)
    manifest = manifest_load(gateway.folder / "weights" / gateway.digest)
    with operator_scope():
        version_publish(slug="tiny", name="tiny", owned_by="test", manifest=manifest, actor=ACTOR)
        route_switch(slug="tiny", digest=manifest.digest, actor=ACTOR)
    price_create("tiny")
    return tenant.id, issued.key.id, issued.plaintext


@pytest_asyncio.fixture(loop_scope="package")
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="package")
async def setup(database: Database, stack: AsyncExitStack) -> AsyncIterator[Setup]:
    relay = Relay(database.gateway_url)
    await relay.start()
    stack.push_async_callback(relay.cut)
    limits = {**QUICK, "spool_aside_retry_s": 0.5}
    async with gateway_started(limits=limits, database_url=relay.url) as gateway:
        tenant_id, key_id, key = await orm(rows_make)(gateway)
        with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
            ready = Setup(gateway, database, relay, tenant_id, key_id, key)
            await ready.status_becomes(200, within_s=5)
            yield ready


USAGE = (
    "SELECT request_id::text, tenant_id, key_id, model, prompt_tokens, output_tokens, outcome, cost_micro_usd"
    " FROM billing_usageevent ORDER BY occurred_at, request_id"
)


async def test_usage_in_the_response_is_the_ledgers(setup: Setup) -> None:
    response = await setup.chat(max_tokens=3)
    usage = response.json()["usage"]
    rows = {row[0]: row[1:] for row in await setup.rows(USAGE, 2)}
    tenant, key, model, prompt, output, outcome, cost = rows[response.headers["x-request-id"]]
    assert (tenant, key, model, outcome) == (setup.tenant_id, setup.key_id, "tiny", "completed")
    assert (prompt, output) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert output == 3
    price = Price(
        version=1,
        model="tiny",
        prompt_micro_usd_per_mtok=150_000,
        cached_micro_usd_per_mtok=75_000,
        output_micro_usd_per_mtok=600_000,
    )
    assert cost == cost_micro_usd(price, prompt, 0, output)


async def test_a_revoked_key_stops_working_within_a_second(setup: Setup) -> None:
    def revoke() -> None:
        with operator_scope():
            services.key_revoke(tenant_id=setup.tenant_id, key_id=setup.key_id, actor=ACTOR)

    await orm(revoke)()
    assert await setup.status_becomes(401, within_s=1) < 1


async def test_a_suspended_tenants_keys_stop_and_come_back(setup: Setup) -> None:
    def suspend() -> None:
        with operator_scope():
            services.tenant_suspend(tenant_id=setup.tenant_id, actor=ACTOR)

    def resume() -> None:
        with operator_scope():
            services.tenant_resume(tenant_id=setup.tenant_id, actor=ACTOR)

    await orm(suspend)()
    await setup.status_becomes(401, within_s=1)
    await orm(resume)()
    await setup.status_becomes(200, within_s=1)


async def test_without_postgres_known_keys_work_and_usage_waits(setup: Setup) -> None:
    await setup.rows(USAGE, 1)
    await setup.relay.cut()
    responses = [await setup.chat() for _ in range(5)]
    assert [response.status for response in responses] == [200] * 5
    assert await setup.gateway.metric("spool_pending_bytes") > 0
    await setup.relay.start()
    rows = await setup.rows(USAGE, 6)
    assert {row[0] for row in rows} >= {response.headers["x-request-id"] for response in responses}
    entries = await setup.rows("SELECT amount_micro_usd FROM billing_ledgerentry", 12)
    assert sum(amount for (amount,) in entries) == 0


async def test_an_unpriced_model_does_not_hold_up_the_others(setup: Setup) -> None:
    gateway = setup.gateway
    digest = store_make(gateway.folder / "weights", template=TEMPLATE + " ")
    await gateway.dispatcher.add(WorkerPeer("worker-2", socket_address(gateway.folder, "w2"), digest))

    def publish() -> None:
        manifest = manifest_load(gateway.folder / "weights" / digest)
        with operator_scope():
            version_publish(slug="unpriced", name="u", owned_by="test", manifest=manifest, actor=ACTOR)
            route_switch(slug="unpriced", digest=manifest.digest, actor=ACTOR)

    await orm(publish)()
    await setup.status_becomes(200, within_s=2, model="unpriced")
    await setup.rows(USAGE, 1)
    await setup.relay.cut()
    for model in ("tiny", "unpriced", "tiny"):  # one batch, once PostgreSQL is back
        assert (await setup.chat(model)).status == 200
    await setup.relay.start()
    await setup.rows(USAGE, 3)
    assert await gateway.metric("spool_set_aside_bytes") > 0
    await orm(price_create)("unpriced")
    rows = await setup.rows(USAGE, 5)
    assert [row[3] for row in rows] == ["tiny", "unpriced", "tiny", "unpriced", "tiny"]
    assert await gateway.metric("spool_set_aside_bytes") == 0
