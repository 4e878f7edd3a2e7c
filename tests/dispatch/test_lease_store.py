"""The lease's store in a real Valkey: its answers are those of the one in the tests of the lease's laws."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random

import pytest
from redis.asyncio import Redis

from devservices.valkey import ValkeyServer
from dispatch.lease import LOOKS, Claim
from dispatch.lease_store import LEADS_KEY, LEASE_KEY, TERM_KEY, LeaseStore
from tests.dispatch.lease_world import Store

FOREVER_MS = 600_000
NAMES = ("a", "b", "c")


@pytest.fixture
async def valkey_client(valkey: ValkeyServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(valkey.url, decode_responses=True, protocol=2)
    await client.delete(LEASE_KEY, TERM_KEY, LEADS_KEY)
    yield client
    await client.delete(LEASE_KEY, TERM_KEY, LEADS_KEY)
    await client.aclose()


@pytest.fixture
async def stores(valkey: ValkeyServer) -> AsyncIterator[dict[str, LeaseStore]]:
    async with AsyncExitStack() as stack:
        made = {name: LeaseStore(valkey.url, name, f"unix:/{name}", FOREVER_MS) for name in NAMES}
        for store in made.values():
            stack.push_async_callback(store.close)
        yield made


@pytest.mark.parametrize("seed", range(10))
async def test_it_answers_as_the_laws_assume(
    stores: dict[str, LeaseStore], valkey_client: Redis, seed: int
) -> None:
    random, model, last = Random(seed), Store(), 0
    for _ in range(60):
        match random.choice(["claim", "claim", "claim", "expire", "release", "wipe"]):
            case "claim":
                name = random.choice(NAMES)
                takes_after = random.choice([LOOKS, last, last, last - 1])
                claim = Claim(takes_after, max(0, last + random.choice([-5, 0, 0, 0, 5])))
                before, last_known = model.term, model.last_term
                expected = model.claim(name, claim, 0.0)
                grant = await stores[name].claim(claim)
                assert grant.is_ours == expected.is_ours
                assert grant.address == (f"unix:/{expected.address}" if expected.address else "")
                if not grant.is_ours:
                    assert grant.term == expected.term
                elif expected.term == before:
                    assert grant.term == before >= claim.seen_term
                else:  # by the clock too, which the other one has not
                    assert grant.term > max(last_known, claim.seen_term)
                    last = model.term = model.last_term = grant.term
            case "expire":
                await valkey_client.delete(LEASE_KEY)
                model.holder = ""
            case "release":
                name = random.choice(NAMES)
                await stores[name].release()
                model.holder = "" if model.holder == name else model.holder
            case "wipe" if random.random() < 0.2:
                await valkey_client.delete(LEASE_KEY, TERM_KEY)
                model.wipe()


async def test_terms_grow_though_the_store_forgets(
    stores: dict[str, LeaseStore], valkey_client: Redis
) -> None:
    first = await stores["a"].claim(Claim(0, 0))
    await valkey_client.delete(LEASE_KEY, TERM_KEY)
    second = await stores["b"].claim(Claim(0, 0))
    assert first.is_ours
    assert second.is_ours
    assert second.term > first.term


async def test_only_the_holder_leaves_something_for_the_next(
    stores: dict[str, LeaseStore], valkey_client: Redis
) -> None:
    assert await stores["b"].left() == ""
    await stores["a"].claim(Claim(0, 0))
    await stores["a"].leave("[1]")
    await stores["b"].leave("[2]")
    assert await stores["b"].left() == "[1]"
    assert 0 < await valkey_client.pttl(LEADS_KEY) <= 10_000
