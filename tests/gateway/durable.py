"""Gateways over a real PostgreSQL and a real Valkey, with a tenant: for answers that outlive their connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from asgiref.sync import sync_to_async

from devservices.valkey import ValkeyServer
from gpuworker.manifest import manifest_load
from modelsvc.services import route_switch, version_publish
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, price_create, tenant_create
from tests.gateway.harness import QUICK, GatewayProcess, gateway_started
from tests.gateway.raw import RawConnection, Response, request

MESSAGES = [{"role": "user", "content": "hello"}]


@dataclass
class Customer:
    tenant_id: UUID
    key_id: UUID
    key: str

    @property
    def authorization(self) -> str:
        return f"authorization: Bearer {self.key}"


@dataclass
class Fleet:
    """One or more gateways of one platform, each with its own dispatcher and worker peers."""

    gateways: list[GatewayProcess]
    database: Database
    valkey: ValkeyServer
    customer: Customer

    async def post(
        self, body: dict[str, Any], *headers: str, gateway: int = 0, path: str = "chat/completions"
    ) -> Response:
        return await self.gateways[gateway].post(f"/v1/{path}", body, self.customer.authorization, *headers)

    async def open(
        self, method: str, path: str, body: bytes, *headers: str, gateway: int = 0
    ) -> RawConnection:
        connection = await RawConnection.open(self.gateways[gateway].port)
        connection.send(method, path, body, self.customer.authorization, *headers)
        return connection

    async def get(self, path: str, *headers: str, gateway: int = 0) -> Response:
        return await request(
            self.gateways[gateway].port, "GET", path, b"", self.customer.authorization, *headers
        )

    async def usage_rows(self) -> list[Any]:
        query = (
            "SELECT request_id, attempt, outcome, billable_prompt_tokens, billable_output_tokens"
            " FROM billing_usageevent ORDER BY occurred_at, request_id, attempt"
        )
        async with await psycopg.AsyncConnection.connect(self.database.operator_url, autocommit=True) as conn:
            return await (await conn.execute(query)).fetchall()


def _customer_make(gateway: GatewayProcess, *, zero_retention: bool) -> Customer:
    tenant = tenant_create()
    if zero_retention:
        with operator_scope():
            type(tenant).objects.filter(id=tenant.id).update(zero_retention=True)
    issued = key_issue(tenant)
    manifest = manifest_load(gateway.folder / "weights" / gateway.digest)
    with operator_scope():
        version_publish(slug="tiny", name="tiny", owned_by="test", manifest=manifest, actor=ACTOR)
        route_switch(slug="tiny", digest=manifest.digest, actor=ACTOR)
    price_create("tiny")
    return Customer(tenant.id, issued.key.id, issued.plaintext)


@asynccontextmanager
async def fleet_started(
    database: Database,
    valkey: ValkeyServer,
    *,
    gateways: int = 1,
    zero_retention: bool = False,
    limits: dict[str, Any] | None = None,
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(
                gateway_started(
                    limits={**QUICK, **(limits or {})},
                    database_url=database.gateway_url,
                    redis_url=valkey.url,
                )
            )
            for _ in range(gateways)
        ]
        make = sync_to_async(_customer_make)
        customer = await make(started[0], zero_retention=zero_retention)
        fleet = Fleet(started, database, valkey, customer)
        for index in range(gateways):
            await _known(fleet, index)
        yield fleet


async def _known(fleet: Fleet, gateway: int) -> None:
    """Until the gateway has read the customer's key."""
    for _ in range(500):
        if (await fleet.get("/v1/models/tiny", gateway=gateway)).status == 200:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the key is not known")
