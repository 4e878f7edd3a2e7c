"""Who may read a stream: its tenant, with a key that is valid, and nobody else learns that it exists."""

import asyncio
import time
from dataclasses import replace

import pytest

from tests.gateway.begun import RESUMABLE, STREAMED, begin, code, rest
from tests.gateway.durable import Fleet, key, paced

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_anothers_streams_do_not_exist(fleet: Fleet) -> None:
    begun = await begin(fleet, RESUMABLE, key("mine"))
    stranger = fleet.of(fleet.others.pop())
    unknown = "01932c07-209c-7d4e-8a3b-0123456789ab"
    for method, status in (("GET", 410), ("DELETE", 404)):
        for gateway in (0, 1):
            said = [
                await stranger.get(f"/v1/streams/{name}", gateway=gateway, method=method)
                for name in (begun.request_id, unknown)
            ]
            assert [answer.status for answer in said] == [status, status]
            assert said[0].body.replace(begun.request_id.encode(), unknown.encode()) == said[1].body
    assert not await begun.is_cancelled(0.6)
    begun.finish_words()
    assert (await begun.rest()).endswith(b"[DONE]\n\n")
    await fleet.usage_rows(1)


async def test_a_revoked_key_ends_it_for_everybody_who_used_that_key(fleet: Fleet) -> None:
    begun = await begin(fleet, RESUMABLE, key("revoked"))
    duplicate = await fleet.open(STREAMED, key("revoked"), gateway=1)
    resumed = await begun.follow(after=1)
    colleague = fleet.of(replace(fleet.customer, key=fleet.customer.other_key))
    follower = await colleague.open(STREAMED, key("revoked"), gateway=1)
    for connection in (duplicate, resumed, follower):
        await connection.head()
    revoked_at = time.monotonic()
    await fleet.revoke()
    bodies = [await rest(connection) for connection in (begun.connection, duplicate, resumed)]
    assert all(b'"code":"invalid_api_key"' in body for body in bodies)
    assert b'"code":"request_cancelled"' in await rest(follower)  # whose own key is as good as before
    assert time.monotonic() - revoked_at < 2
    assert (await begun.get()).status == 401
    assert await begun.is_cancelled(1.0)
    await fleet.usage_rows(1)


async def test_a_waiting_duplicates_key_is_revoked(fleet: Fleet) -> None:
    """It waits for a gateway that is dead, by its record."""
    await begin(fleet, key("waits"))
    await fleet.sql(
        "UPDATE billing_idempotencyrecord SET owner = 'nobody' WHERE tenant_id = %s", fleet.customer.tenant_id
    )
    waiting = asyncio.create_task(fleet.post(STREAMED, key("waits"), gateway=1))
    await asyncio.sleep(0.3)
    await fleet.revoke()
    refused = await asyncio.wait_for(waiting, 2.0)
    assert code(refused) == (401, "invalid_api_key")
    await fleet.usage_rows(1)


@pytest.mark.parametrize(
    ("path", "header", "status", "param"),
    [
        ("{}?after=x", "", 400, "after"),
        ("{}?after=-1", "", 400, "after"),
        ("{}?after=" + "9" * 5000, "", 400, "after"),
        ("{}", "last-event-id: {}", 400, "last-event-id"),
        ("{}", "last-event-id: 01932c07-209c-7d4e-8a3b-0123456789ab:1", 400, "last-event-id"),
        ("{}", "last-event-id: {}:", 400, "last-event-id"),
        ("{}-1", "", 404, None),
        ("{}-2", "", 410, None),
        ("{}-x", "", 404, None),
        ("x", "", 404, None),
    ],
)
async def test_places_that_are_none(
    fleet: Fleet, path: str, header: str, status: int, param: str | None
) -> None:
    name = "01932c07-209c-7d4e-8a3b-000000000000"
    headers = [header.format(name)] if header else []
    refused = await fleet.get("/v1/streams/" + path.format(name), *headers)
    assert (refused.status, refused.json()["error"]["param"]) == (status, param)


async def test_there_is_nothing_after_the_end(fleet: Fleet) -> None:
    with fleet.scripted(paced(["one", " two"])):
        first = await fleet.post(STREAMED, RESUMABLE)
    request_id = first.headers["x-request-id"]
    last = first.body.count(b"id: ")
    at_the_end = await fleet.get(f"/v1/streams/{request_id}?after={last}", gateway=1)
    assert (at_the_end.status, at_the_end.body) == (200, b"")
    beyond = await fleet.get(f"/v1/streams/{request_id}?after={last + 1}", gateway=1)
    assert (beyond.status, beyond.json()["error"]["param"]) == (400, "after")
