"""`/v1/stream` through a plain WebSocket client, under every server."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from tests.conformance.fronts import SPOKEN, Front
from tests.gateway.harness import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="package")

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}


def opened(front: Front, key: str = "full", **options: Any) -> connect:
    headers = {"authorization": f"Bearer {front.deployment.keys[key]}"}
    url = front.url.replace("http", "ws", 1) + "/v1/stream"
    return connect(url, additional_headers=headers, proxy=None, open_timeout=10, **options)


async def create(socket: ClientConnection, name: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": "request.create", "id": name, "body": BODY, **fields}))


async def frames_until_done(socket: ClientConnection, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Of each request, until these are done."""
    frames: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    while not all(got and got[-1]["type"] == "done" for name, got in frames.items() if name in names):
        frame = json.loads(await asyncio.wait_for(socket.recv(), 10))
        frames.setdefault(frame["id"], []).append(frame)
    return frames


async def test_many_requests_over_one_socket(front: Front) -> None:
    names = [f"request-{number}" for number in range(8)]
    async with opened(front) as socket:
        with front.saying(*SPOKEN):
            for name in names:
                await create(socket, name)
            frames = await frames_until_done(socket, *names)
    assert sorted(frames) == names
    for accepted, *chunks, done in frames.values():
        assert (accepted["type"], done["type"]) == ("request.accepted", "done")
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["data"]["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "".join(SPOKEN)
        numbers = [frame["seq"] for frame in (*chunks, done)]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_the_key_may_come_as_a_subprotocol(front: Front) -> None:
    """The one header that a browser's page can choose."""
    protocols: Any = ["sluice.v1", f"openai-insecure-api-key.{front.key}"]
    url = front.url.replace("http", "ws", 1) + "/v1/stream"
    async with connect(url, subprotocols=protocols, proxy=None) as socket:
        assert socket.subprotocol == "sluice.v1"
        with front.saying("hello"):
            await create(socket, "one")
            await frames_until_done(socket, "one")


async def test_a_bad_key_is_refused_at_the_upgrade(front: Front) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with opened(front, "unknown"):
            pass
    # daphne cannot say a status of the application's before it has accepted
    assert refused.value.response.status_code == (403 if front.server.name == "daphne" else 401)


async def test_a_request_can_be_cancelled_and_others_go_on(front: Front) -> None:
    async with opened(front) as socket:
        await create(socket, "left")
        left = await front.dispatcher.submitted()
        await create(socket, "kept")
        kept = await front.dispatcher.submitted()
        for submit in (left, kept):
            front.dispatcher.place(submit, front.worker)
        front.worker.emit(left.sid, 0, 1, "one")
        await socket.send(json.dumps({"type": "cancel", "id": "left"}))
        cancel = await asyncio.wait_for(front.worker.cancels.get(), 5)
        assert cancel.sid == left.sid
        front.speak(kept, ["done"], "stop")
        await frames_until_done(socket, "kept")


@pytest.mark.parametrize("rudely", [False, True])
async def test_a_client_that_leaves_cancels_its_requests(front: Front, rudely: bool) -> None:
    async with opened(front) as socket:
        await create(socket, "one")
        submit = await front.dispatcher.submitted()
        front.dispatcher.place(submit, front.worker)
        front.worker.emit(submit.sid, 0, 1, "one")
        await asyncio.wait_for(socket.recv(), 5)
        if rudely:
            socket.transport.abort()
        else:
            await socket.close()
        cancel = await asyncio.wait_for(front.worker.cancels.get(), 5)
        assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")


async def test_without_an_upgrade_it_says_what_is_missing(front: Front) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(2):  # the second on the same connection, or a new one
            response = await client.get(front.url + "/v1/stream")
            assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")
            assert response.json()["error"]["code"] == "upgrade_required"
