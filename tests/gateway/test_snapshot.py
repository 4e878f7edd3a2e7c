"""The gateway's copy follows what operators change within a second: quotas, weights, prices, stand-ins."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async

from billing.contracts import Price
from config.environment import master_keys
from gateway.access.snapshot import Snapshot, SnapshotFeed
from modelsvc.services import route_smaller_set
from tenants import quotas
from tenants.contracts import QuotaLimit
from tenants.models import ApiKey, Tenant
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, model_create, price_create, tenant_create

SOON_S = 1.0


class Followed:
    """A running feed, and waiting for what it must come to show."""

    def __init__(self, database: Database) -> None:
        self._changed = asyncio.Event()
        self.feed = SnapshotFeed(database.gateway_url, master_keys(), lambda _: self._changed.set())

    async def shows(self, is_there: Callable[[Snapshot], bool], within_s: float = SOON_S) -> Snapshot:
        async with asyncio.timeout(within_s):
            while self.feed.current is None or not is_there(self.feed.current):
                await self._changed.wait()
                self._changed.clear()
        return self.feed.current


@pytest.fixture
def key(database: Database) -> ApiKey:
    model_create("large")
    model_create("small")
    price_create("large")
    return key_issue(tenant_create("acme")).key


@pytest.fixture
async def followed(database: Database, key: ApiKey) -> AsyncIterator[Followed]:
    followed = Followed(database)
    running = asyncio.create_task(followed.feed.run())
    await followed.shows(lambda snapshot: True, within_s=10)
    yield followed
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def operator(service: Callable[..., Any], **arguments: Any) -> Any:
    def act() -> Any:
        with operator_scope():
            return service(**arguments, actor=ACTOR)

    return await sync_to_async(act)()


def quotas_of(snapshot: Snapshot, key: ApiKey) -> tuple[QuotaLimit, ...]:
    return snapshot.grants[key.public_id].quotas


async def test_a_route_is_followed_though_nobody_gives_notice_and_never_back(
    followed: Followed, database: Database
) -> None:
    # Given a change that no trigger tells of, as by a connection that lost its notices
    def write(revision: int) -> None:
        with psycopg.connect(database.admin_url, autocommit=True) as conn:
            conn.execute("SET session_replication_role = replica")
            conn.execute("UPDATE modelsvc_modelroute SET revision = %s", (revision,))

    await asyncio.to_thread(write, 7)
    # Then it is seen within a second
    await followed.shows(lambda snapshot: snapshot.routes["large"].revision == 7)
    # And what a server that lags says changes nothing
    await asyncio.to_thread(write, 3)
    await asyncio.sleep(1.5)
    assert followed.feed.current is not None
    assert followed.feed.current.routes["large"].revision == 7
    await asyncio.to_thread(write, 8)
    await followed.shows(lambda snapshot: snapshot.routes["large"].revision == 8)


async def test_how_old_the_routes_are_is_known_and_less_than_a_second(followed: Followed) -> None:
    feed, ages_s = followed.feed, []
    until = time.monotonic() + 2.0
    while (now := time.monotonic()) < until:
        ages_s.append(now - feed.known_at)
        await asyncio.sleep(0.02)
    assert max(ages_s) <= SOON_S
    assert min(ages_s) < max(ages_s) / 2  # it was asked meanwhile


async def test_a_quota_set_changed_and_removed_is_seen_at_once(followed: Followed, key: ApiKey) -> None:
    assert quotas_of(await followed.shows(lambda snapshot: True), key) == ()
    of_tenant = {"tenant_id": key.tenant_id, "name": "tokens_per_minute"}
    for limit in (500, 700):
        quota = await operator(quotas.quota_set, limit=limit, **of_tenant)
        await followed.shows(
            lambda snapshot, limit=limit: [quota.limit for quota in quotas_of(snapshot, key)] == [limit]  # type: ignore[misc]
        )
    await operator(quotas.quota_remove, tenant_id=key.tenant_id, quota_id=quota.id)
    await followed.shows(lambda snapshot: quotas_of(snapshot, key) == ())


async def test_a_weight_is_seen_at_once(followed: Followed, key: ApiKey) -> None:
    await operator(quotas.tenant_weight_set, tenant_id=key.tenant_id, weight=Decimal(3))
    await followed.shows(lambda snapshot: snapshot.grants[key.public_id].weight == 3.0)


async def test_what_stands_in_for_a_model_is_seen_at_once(followed: Followed) -> None:
    await operator(route_smaller_set, slug="large", smaller="small")
    snapshot = await followed.shows(lambda snapshot: snapshot.routes["large"].smaller == "small")
    assert snapshot.routes["small"].smaller == ""


async def test_a_price_is_seen_at_once_and_one_of_later_is_not(followed: Followed) -> None:
    first = await followed.shows(lambda snapshot: True)
    assert first.prices == {
        "large": Price(
            version=1,
            model="large",
            prompt_micro_usd_per_mtok=150_000,
            cached_micro_usd_per_mtok=75_000,
            output_micro_usd_per_mtok=600_000,
        )
    }
    # when: a version from tomorrow on, then a first price of another model
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    await sync_to_async(price_create)("large", output=1, effective_from=tomorrow)
    await sync_to_async(price_create)("small", output=5)
    snapshot = await followed.shows(lambda snapshot: "small" in snapshot.prices)
    assert snapshot.prices["small"].output_micro_usd_per_mtok == 5
    assert snapshot.prices["large"] == first.prices["large"]


async def test_the_newest_price_that_is_effective_counts(database: Database, followed: Followed) -> None:
    """Given a later version effective by now."""
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    await sync_to_async(price_create)("large", output=7, effective_from=soon)
    await asyncio.sleep(0.3)
    await operator(quotas.tenant_weight_set, tenant_id=await _tenant_id(), weight=Decimal(2))
    snapshot = await followed.shows(lambda snapshot: snapshot.prices["large"].version == 2)
    assert snapshot.prices["large"].output_micro_usd_per_mtok == 7


async def _tenant_id() -> Any:
    def find() -> Any:
        with operator_scope():
            return Tenant.unscoped.get().id

    return await sync_to_async(find)()
