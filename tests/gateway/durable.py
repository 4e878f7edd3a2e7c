"""Gateways over a real PostgreSQL and Valkey, with tenants: for answers that outlive their connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg
from asgiref.sync import sync_to_async

from devservices.valkey import ValkeyServer
from gpuworker.manifest import manifest_load
from gpuworker.wire.messages import Submit
from modelsvc.services import route_switch, version_publish
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, price_create, tenant_create
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.raw import RawConnection, Response, request

MESSAGES = [{"role": "user", "content": "hello"}]
GRACE_S = 3.0  # of the shared gateways
BODY = {"model": MODEL, "messages": MESSAGES, "max_tokens": 5}


def key(name: str) -> str:
    return f"idempotency-key: {name}"


@dataclass(frozen=True)
class Customer:
    """`other_key` is of the same tenant."""

    tenant_id: UUID
    public_id: str
    key: str
    other_key: str

    @property
    def authorization(self) -> str:
        return f"authorization: Bearer {self.key}"


@dataclass(frozen=True)
class Fleet:
    """Gateways of one platform, each with its own dispatcher and worker peers, as one customer sees them."""

    gateways: list[GatewayProcess]
    database: Database
    redis_url: str
    customer: Customer
    others: list[Customer]  # not yet taken
    strict: list[Customer]  # the same, with zero retention

    def of(self, customer: Customer) -> "Fleet":
        return replace(self, customer=customer)

    async def post(
        self, body: dict[str, Any], *headers: str, gateway: int = 0, path: str = "/v1/chat/completions"
    ) -> Response:
        return await self.gateways[gateway].post(path, body, self.customer.authorization, *headers)

    async def open(
        self,
        body: dict[str, Any],
        *headers: str,
        gateway: int = 0,
        path: str = "/v1/chat/completions",
        method: str = "POST",
    ) -> RawConnection:
        connection = await RawConnection.open(self.gateways[gateway].port)
        data = json.dumps(body).encode() if body else b""
        connection.send(method, path, data, self.customer.authorization, *headers)
        return connection

    async def get(self, path: str, *headers: str, gateway: int = 0, method: str = "GET") -> Response:
        port = self.gateways[gateway].port
        return await request(port, method, path, b"", self.customer.authorization, *headers)

    async def usage_rows(self, count: int, *, settled_s: float = 0.1) -> list[Any]:
        """When there are so many: request, attempt, outcome, billed prompt tokens, billed output tokens."""
        query = (
            "SELECT request_id, attempt, outcome, billable_prompt_tokens + billable_cached_tokens,"
            " billable_output_tokens FROM billing_usageevent WHERE tenant_id = %s"
            " ORDER BY occurred_at, request_id, attempt"
        )
        found: list[Any] = []
        for _ in range(500):
            found = await self.sql(query, self.customer.tenant_id)
            if len(found) >= count:
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(settled_s)  # one too many would come now
        found = await self.sql(query, self.customer.tenant_id)
        assert len(found) == count, found
        return found

    async def sql(self, query: str, *arguments: Any) -> list[Any]:
        """As operators."""
        async with await psycopg.AsyncConnection.connect(self.database.admin_url, autocommit=True) as conn:
            cursor = await conn.execute(query, arguments)
            return await cursor.fetchall() if cursor.description else []

    async def apply(self, query: str, *arguments: Any) -> None:
        """A change of keys, tenants or routes. Returns when every gateway has read it."""
        begun_at = asyncio.get_running_loop().time()
        await self.sql(query, *arguments)
        for gateway in self.gateways:
            for _ in range(500):
                asked_at = asyncio.get_running_loop().time()
                if await gateway.metric("snapshot_age_seconds") < asked_at - begun_at:
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError("a gateway has not read it")
        await asyncio.sleep(0.05)  # one may have been reading before

    async def leases_end(self) -> None:
        """As if 15 seconds had passed for all owners that do not renew them."""
        await self.sql(
            "UPDATE billing_idempotencyrecord SET lease_until = now() - interval '1 s' WHERE tenant_id = %s",
            self.customer.tenant_id,
        )

    async def record(self, key: str) -> tuple[str, int]:
        """State and attempt of an idempotency key."""
        query = "SELECT state, attempt FROM billing_idempotencyrecord WHERE tenant_id = %s AND key = %s"
        (row,) = await self.sql(query, self.customer.tenant_id, key)
        return row[0], row[1]

    async def revoke(self) -> None:
        await self.sql(
            "UPDATE tenants_apikey SET revoked_at = now() WHERE public_id = %s", self.customer.public_id
        )

    async def settled(self, key: str, state: str) -> None:
        """Until the key's record says so."""
        for _ in range(500):
            if (await self.record(key))[0] == state:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"the key is not {state}: {await self.record(key)}")

    @contextmanager
    def scripted(self, script_of: Callable[[GatewayProcess], Callable[[Submit], None]]) -> Iterator[None]:
        """Every gateway's peers answer by a script of their own."""
        with ExitStack() as stack:
            for gateway in self.gateways:
                stack.enter_context(gateway.dispatcher.scripted(script_of(gateway)))
            yield


def paced(
    words: list[str] | Callable[[Submit], list[str]],
    pause_s: float = 0.0,
    reason: str = "stop",
    submits: list[Submit] | None = None,
) -> Any:
    """A script for `Fleet.scripted`: one word, one token, after each pause. Kept in `submits`."""

    def script_of(gateway: GatewayProcess) -> Callable[[Submit], None]:
        def script(submit: Submit) -> None:
            if submits is not None:
                submits.append(submit)
            loop, worker = asyncio.get_running_loop(), gateway.worker
            said = words if isinstance(words, list) else words(submit)
            gateway.dispatcher.place(submit, worker)

            def emit(number: int) -> None:
                if submit.sid not in worker.counts:
                    return  # cancelled
                if number < len(said):
                    worker.emit(submit.sid, number, 1, said[number])
                    loop.call_later(pause_s, emit, number + 1)
                else:
                    worker.finish(submit.sid, reason, output=len(said))

            emit(0)

        return script

    return script_of


def customers_make(gateway: GatewayProcess, count: int) -> list[Customer]:
    manifest = manifest_load(gateway.folder / "weights" / gateway.digest)
    with operator_scope():
        version_publish(slug=MODEL, name=MODEL, owned_by="test", manifest=manifest, actor=ACTOR)
        route_switch(slug=MODEL, digest=manifest.digest, actor=ACTOR)
    price_create(MODEL)
    customers = []
    for _ in range(count):
        tenant = tenant_create()
        issued, other = key_issue(tenant), key_issue(tenant)
        customers.append(Customer(tenant.id, issued.key.public_id, issued.plaintext, other.plaintext))
    return customers


@asynccontextmanager
async def fleet_started(
    database: Database,
    valkey: ValkeyServer,
    *,
    gateways: int = 1,
    customers: int = 1,
    strict: int = 0,
    limits: dict[str, Any] | None = None,
) -> AsyncIterator[Fleet]:
    """`customers` ordinary ones and so many `strict` ones, with zero retention."""
    async with AsyncExitStack() as stack:
        starting = [
            gateway_started(
                limits={**QUICK, **(limits or {})}, database_url=database.gateway_url, redis_url=valkey.url
            )
            for _ in range(gateways)
        ]
        started = [await stack.enter_async_context(gateway) for gateway in starting]
        make = sync_to_async(customers_make)
        made = await make(started[0], customers + strict)
        fleet = Fleet(started, database, valkey.url, made[0], made[1:customers], made[customers:])
        if strict:
            query = "UPDATE tenants_tenant SET zero_retention = true WHERE id = ANY(%s)"
            await fleet.sql(query, [customer.tenant_id for customer in fleet.strict])
        for index, gateway in enumerate(started):
            await key_known(fleet.of(made[-1]), index)
            gateway.idle_tasks = await gateway.metric("tasks")
        yield fleet


@asynccontextmanager
async def gateway_added(
    fleet: Fleet, *, database_url: str = "", redis_url: str = "", environment: dict[str, str] | None = None
) -> AsyncIterator[Fleet]:
    """A gateway of a test's own, the fleet's first: it may be killed, and reach its stores its own way."""
    async with gateway_started(
        limits=QUICK,
        database_url=database_url or fleet.database.gateway_url,
        redis_url=redis_url or fleet.redis_url,
        environment=environment,
    ) as added:
        fleet = replace(fleet, gateways=[added, *fleet.gateways])
        await key_known(fleet, 0)
        added.idle_tasks = await added.metric("tasks")
        yield fleet
        if added.process.returncode is None:
            await added.idle()


async def key_known(fleet: Fleet, gateway: int, *, status: int = 200) -> None:
    """Until the gateway has read what PostgreSQL says of the customer's key."""
    for _ in range(500):
        if (await fleet.get(f"/v1/models/{MODEL}", gateway=gateway)).status == status:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the gateway does not know it")
