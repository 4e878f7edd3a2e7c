"""The console's WebSocket, in process: who may connect, what is sent, when it ends."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis.asyncio
from asgiref.sync import sync_to_async
from channels.auth import AuthMiddlewareStack
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client

from console import consumers
from console.routing import websocket_urlpatterns
from devservices.valkey import ValkeyServer
from modelsvc.fleet_contracts import FLEET_HISTORY_KEY
from tenants.models import User
from tenants.scoping import operator_scope
from tests.browser.fleet import AT_MS, controller, fleet, worker
from tests.conftest import Database

PATH = "/ws/console/fleet/"


@pytest.fixture
async def layer(clean_valkey: ValkeyServer) -> AsyncIterator[Any]:
    """The channel layer; its connections end with the test's event loop."""
    layer: Any = get_channel_layer()
    yield layer
    await layer.close_pools()


@pytest.fixture
def operator(database: Database, admin_user: User) -> Client:
    client = Client()
    client.force_login(admin_user)
    return client


def socket(client: Client | None = None) -> WebsocketCommunicator:
    application = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
    headers = []
    if client is not None:
        cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
        headers = [(b"cookie", cookie.encode())]
    return WebsocketCommunicator(application, PATH, headers=headers)


async def messages_until(connection: WebsocketCommunicator, kind: str) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = await connection.receive_json_from(timeout=5)
        if message["type"] == kind:
            return message


async def test_strangers_and_members_are_refused_before_the_handshake(operator: Client, layer: Any) -> None:
    def member() -> Client:
        with operator_scope():
            user = User.objects.create_user("member", "member@example.com", "member-password")
        client = Client()
        client.force_login(user)
        return client

    assert await socket().connect(timeout=5) == (False, consumers.FORBIDDEN)
    assert await socket(await sync_to_async(member)()).connect(timeout=5) == (False, consumers.FORBIDDEN)


async def test_staff_get_state_and_history_first_and_then_each_new_state(
    operator: Client, layer: Any, clean_valkey: ValkeyServer
) -> None:
    async with redis.asyncio.Redis.from_url(clean_valkey.url) as client:
        for at_ms in (1_000, 2_000):
            point = {"at_ms": at_ms, "tokens_per_s": 1.5, "running": 2, "queued": {"batch": 1}}
            await client.lpush(FLEET_HISTORY_KEY, json.dumps(point))
    connection = socket(operator)
    assert (await connection.connect(timeout=5))[0]
    first = await connection.receive_json_from(timeout=5)
    assert (first["type"], first["state"]) == ("snapshot", None)
    assert [point["at_ms"] for point in first["history"]] == [1_000, 2_000]
    async with controller(clean_valkey.url) as publisher:
        publisher.offer(fleet([worker(0), worker(1)], seq=7))
        update = await messages_until(connection, "state")
    assert (update["state"]["seq"], len(update["state"]["workers"])) == (7, 2)
    assert update["now_ms"] > update["state"]["at_ms"]

    later = socket(operator)
    assert (await later.connect(timeout=5))[0]
    assert (await later.receive_json_from(timeout=5))["state"]["seq"] == 7
    await connection.disconnect()
    await later.disconnect()


async def test_the_history_begins_anew_when_the_dispatchers_clock_is_set_back(
    operator: Client, layer: Any, clean_valkey: ValkeyServer
) -> None:
    connection = socket(operator)
    await connection.connect(timeout=5)
    async with (
        controller(clean_valkey.url) as publisher,
        redis.asyncio.Redis.from_url(clean_valkey.url) as client,
    ):
        for at_ms in (AT_MS, AT_MS + 1_000, AT_MS - 2_000, AT_MS - 3_600_000, AT_MS - 3_599_000):
            publisher.offer(fleet([worker(0)], at_ms=at_ms))
            await messages_until(connection, "state")
        history = [json.loads(point)["at_ms"] for point in await client.lrange(FLEET_HISTORY_KEY, 0, -1)]
        await connection.disconnect()
    assert history == [AT_MS - 3_599_000, AT_MS - 3_600_000]


async def test_a_ping_is_answered_and_rubbish_is_not(operator: Client, layer: Any) -> None:
    connection = socket(operator)
    await connection.connect(timeout=5)
    await messages_until(connection, "snapshot")
    await connection.send_to(text_data="{not json")
    await connection.send_to(bytes_data=b"\xff")
    await connection.send_to(text_data="ping")
    assert await connection.receive_from(timeout=5) == "pong"
    await connection.disconnect()


async def test_an_unreadable_store_is_told_and_the_socket_stays(
    operator: Client, layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    connection = socket(operator)
    await connection.connect(timeout=5)
    message = await messages_until(connection, "unavailable")
    assert "cannot be reached" in message["message"]
    await connection.disconnect()


@pytest.mark.parametrize("how", ["log-out", "no longer staff", "new password", "session over"])
async def test_the_stream_ends_when_the_viewer_may_no_longer_see_it(
    operator: Client, layer: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(consumers, "RECHECK_S", 0.05)

    def end() -> None:
        if how == "log-out":
            operator.post("/console/logout/")
            return
        with operator_scope():
            if how == "no longer staff":
                User.objects.update(is_staff=False)
            elif how == "new password":
                user = User.objects.get()
                user.set_password("another-password")
                user.save()
            else:
                Session.objects.update(expire_date=datetime.now(UTC))

    connection = socket(operator)
    await connection.connect(timeout=5)
    await messages_until(connection, "snapshot")
    await sync_to_async(end)()
    ended = await connection.receive_output(timeout=5)
    assert (ended["type"], ended["code"]) == ("websocket.close", consumers.FORBIDDEN)
    await connection.disconnect()
