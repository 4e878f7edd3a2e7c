"""How long a generation lives without its client, and who may end it."""

import asyncio
import time
from typing import Any

import pytest

from tests.gateway.begun import RESUMABLE, STREAMED, begin, code, rest
from tests.gateway.durable import GRACE_S, Fleet, key, paced

pytestmark = pytest.mark.asyncio(loop_scope="package")

LISTENER_TTL_S = 4.0


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
    begun.finish_words()
    for gateway in (0, 1):
        resumed = await begun.get(after=2, gateway=gateway)
        assert resumed.status == 200
        assert b"two" in resumed.body
        assert b"one" not in resumed.body
        assert resumed.body.endswith(b"[DONE]\n\n")
    (row,) = await fleet.usage_rows(1)
    assert (row[2], row[4]) == ("completed", 4)


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
    last = resumed.body.count(b"\nid: ")
    again = await begun.get(after=last)  # the text was seen: the error is a status
    assert code(again) == (503, "request_cancelled")


@pytest.mark.parametrize("headers", [(), (key("alone"),)])
async def test_one_that_is_not_resumable_ends_at_once(fleet: Fleet, headers: tuple[str, ...]) -> None:
    begun = await begin(fleet, *headers)
    begun.connection.close()
    assert await begun.is_cancelled(0.5)
    await fleet.usage_rows(1)


async def test_before_the_client_knows_its_name_nothing_outlives_it(fleet: Fleet) -> None:
    """It could neither resume it nor end it."""
    gateway = fleet.gateways[0]
    connection = await fleet.open(STREAMED, RESUMABLE)
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    connection.close()
    cancel = await asyncio.wait_for(gateway.worker.cancels.get(), 1)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    await fleet.usage_rows(1)


async def test_a_follower_elsewhere_keeps_it_alive(fleet: Fleet) -> None:
    begun = await begin(fleet, key("followed"))
    follower = await fleet.open(STREAMED, key("followed"), gateway=1)
    await follower.head()
    begun.connection.close()
    assert not await begun.is_cancelled(1.5)
    begun.finish_words()
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
    assert (await begun.delete(1)).status == 202
    await fleet.settled("twice", "failed")
    with fleet.scripted(paced(["one", " two", " three"], 0.3)):
        again = await fleet.post(STREAMED, RESUMABLE, key("twice"), gateway=1)  # and is not ended with it
    assert again.headers["x-request-id"] == begun.request_id
    assert again.body.endswith(b"[DONE]\n\n")
    assert f"id: {begun.request_id}-2:1\n".encode() in again.body
    ended = await begun.get(after=2)
    assert code(ended) == (410, "resume_expired")
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
        assert b'"code":"request_cancelled"' in await begun.rest()
    (row,) = await fleet.usage_rows(1)
    assert (row[2], row[4]) == ("cancelled", 1)
