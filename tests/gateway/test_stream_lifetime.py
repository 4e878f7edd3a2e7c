"""How long a generation lives without its client, who may end it, and who may read it."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from gpuworker.wire.messages import Submit
from tests.gateway.durable import BODY, GRACE_S, Fleet, key, paced
from tests.gateway.raw import RawConnection, Response

pytestmark = pytest.mark.asyncio(loop_scope="package")

STREAMED = {**BODY, "stream": True}
RESUMABLE = "x-stream-resume: 1"
LISTENER_TTL_S = 4.0


@dataclass
class Begun:
    """A stream of the first gateway of which one word has been sent."""

    fleet: Fleet
    connection: RawConnection
    submit: Submit
    request_id: str

    async def is_cancelled(self, within_s: float) -> bool:
        try:
            await asyncio.wait_for(self.fleet.gateways[0].worker.cancels.get(), within_s)
        except TimeoutError:
            return False
        return True

    def finish(self) -> None:
        worker = self.fleet.gateways[0].worker
        worker.emit(self.submit.sid, 1, 1, " two")
        worker.finish(self.submit.sid, "stop", output=2)

    async def get(self, after: int = 0, gateway: int = 1) -> Response:
        return await self.fleet.get(f"/v1/streams/{self.request_id}?after={after}", gateway=gateway)

    async def delete(self, gateway: int) -> Response:
        return await self.fleet.get(f"/v1/streams/{self.request_id}", gateway=gateway, method="DELETE")


async def begin(fleet: Fleet, *headers: str, body: dict[str, Any] = STREAMED) -> Begun:
    connection = await fleet.open(body, *headers)
    gateway = fleet.gateways[0]
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "one")
    head = await connection.head()
    await connection.chunk()
    return Begun(fleet, connection, submit, head.headers["x-request-id"])


async def rest(connection: RawConnection) -> bytes:
    body = b""
    while chunk := await asyncio.wait_for(connection.chunk(), 10):
        body += chunk
    return body


@pytest.mark.parametrize(
    ("headers", "body"),
    [((RESUMABLE,), STREAMED), ((), {**STREAMED, "resumable": True}), ((RESUMABLE, key("both")), STREAMED)],
)
async def test_a_resumable_one_goes_on_without_its_client(
    fleet: Fleet, headers: tuple[str, ...], body: dict[str, Any]
) -> None:
    begun = await begin(fleet, *headers, body=body)
    begun.connection.close()
    assert not await begun.is_cancelled(1.0)
    begun.finish()
    for gateway in (0, 1):
        resumed = await begun.get(after=2, gateway=gateway)
        assert resumed.status == 200
        assert b"two" in resumed.body
        assert b"one" not in resumed.body
        assert resumed.body.endswith(b"[DONE]\n\n")
    (row,) = await fleet.usage_rows(1)
    assert (row[2], row[4]) == ("completed", 2)


async def test_without_anybody_it_ends_after_the_grace_period(fleet: Fleet) -> None:
    begun = await begin(fleet, RESUMABLE)
    left_at = time.monotonic()
    begun.connection.close()
    assert await begun.is_cancelled(GRACE_S + 2)
    assert time.monotonic() - left_at > GRACE_S - 0.1
    (row,) = await fleet.usage_rows(1)
    assert (row[2], row[4]) == ("cancelled", 1)
    resumed = await begun.get()
    assert (resumed.status, b"one" in resumed.body) == (200, True)
    assert b'"code":"request_cancelled"' in resumed.body  # after what had been said


@pytest.mark.parametrize("headers", [(), (key("alone"),)])
async def test_one_that_is_not_resumable_ends_at_once(fleet: Fleet, headers: tuple[str, ...]) -> None:
    begun = await begin(fleet, *headers)
    begun.connection.close()
    assert await begun.is_cancelled(0.5)
    await fleet.usage_rows(1)


async def test_a_follower_elsewhere_keeps_it_alive(fleet: Fleet) -> None:
    begun = await begin(fleet, key("followed"))
    follower = await fleet.open(STREAMED, key("followed"), gateway=1)
    await follower.head()
    begun.connection.close()
    assert not await begun.is_cancelled(1.5)
    begun.finish()
    assert (await rest(follower)).endswith(b"[DONE]\n\n")
    (row,) = await fleet.usage_rows(1)
    assert row[2] == "completed"


async def test_it_ends_when_the_last_follower_is_gone(fleet: Fleet) -> None:
    begun = await begin(fleet, key("followed"))
    follower = await fleet.open(STREAMED, key("followed"), gateway=1)
    await follower.head()
    begun.connection.close()
    assert not await begun.is_cancelled(1.0)
    follower.close()
    assert await begun.is_cancelled(LISTENER_TTL_S + 1.0)
    await fleet.usage_rows(1)


async def test_a_client_that_left_and_comes_back_at_once_gets_a_whole_answer(fleet: Fleet) -> None:
    """It does not follow what is being ended, but runs again; only what is new is billed."""
    begun = await begin(fleet, key("torn"))
    fleet.gateways[0].worker.answers_cancels = False
    begun.connection.close()
    assert await begun.is_cancelled(0.5)
    with fleet.scripted(paced(["one", " two", " three"])):
        again = [asyncio.create_task(fleet.post(STREAMED, key("torn"), gateway=index)) for index in (0, 1)]
        await asyncio.sleep(0.3)
        fleet.gateways[0].worker.finish(begun.submit.sid, "cancelled", output=1)
        answers = await asyncio.gather(*again)
    assert answers[0].body == answers[1].body
    assert answers[0].body.count(b"one") == 1
    assert answers[0].body.endswith(b"[DONE]\n\n")
    rows = await fleet.usage_rows(2)
    assert [(row[1], row[4]) for row in rows] == [(1, 1), (2, 2)]
    assert {str(row[0]) for row in rows} == {begun.request_id}
    assert sum(row[3] > 0 for row in rows) == 1  # the prompt once


async def test_a_later_attempt_is_another_stream(fleet: Fleet) -> None:
    begun = await begin(fleet, RESUMABLE, key("twice"))
    assert (await begun.delete(0)).status == 202
    await fleet.settled("twice", "failed")
    with fleet.scripted(paced(["one", " two", " three"], 0.05)):
        again = await fleet.post(STREAMED, RESUMABLE, key("twice"), gateway=1)  # and is not ended with it
    assert again.headers["x-request-id"] == begun.request_id
    assert again.body.endswith(b"[DONE]\n\n")
    assert f"id: {begun.request_id}-2:1\n".encode() in again.body
    ended = await begun.get(after=2)
    assert (ended.status, ended.json()["error"]["code"]) == (410, "resume_expired")
    header = f"last-event-id: {begun.request_id}-2:2"
    for resumed in (
        await fleet.get(f"/v1/streams/{begun.request_id}", header),
        await fleet.get(f"/v1/streams/{begun.request_id}-2?after=2", gateway=1),
    ):
        assert (
            resumed.body == again.body[again.body.index(b"id: " + header.split()[1].encode()[:-1] + b"3") :]
        )
    await fleet.usage_rows(2)


@pytest.mark.parametrize("gateway", [0, 1])
@pytest.mark.parametrize("is_connected", [True, False])
async def test_a_client_may_end_it_anywhere(fleet: Fleet, *, gateway: int, is_connected: bool) -> None:
    begun = await begin(fleet, RESUMABLE)
    if not is_connected:
        begun.connection.close()
    ended = await begun.delete(gateway)
    assert (ended.status, ended.json()) == (202, {"cancelled": True})
    assert await begun.is_cancelled(1.0)
    if is_connected:
        assert b'"code":"request_cancelled"' in await rest(begun.connection)
    (row,) = await fleet.usage_rows(1)
    assert (row[2], row[4]) == ("cancelled", 1)


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
    begun.finish()
    assert (await rest(begun.connection)).endswith(b"[DONE]\n\n")
    await fleet.usage_rows(1)


async def test_a_revoked_key_ends_it_for_everybody_who_used_that_key(fleet: Fleet) -> None:
    begun = await begin(fleet, RESUMABLE, key("revoked"))
    duplicate = await fleet.open(STREAMED, key("revoked"), gateway=1)
    resumed = await fleet.open({}, gateway=1, path=f"/v1/streams/{begun.request_id}?after=1", method="GET")
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
    assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
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


@pytest_asyncio.fixture(autouse=True, loop_scope="package")
async def _closed() -> Any:
    yield
    RawConnection.close_all()
