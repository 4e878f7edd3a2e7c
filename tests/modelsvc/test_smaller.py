"""What stands in for a model under pressure: another routed one, and never the model itself by any way."""

import asyncio
import json
import threading
from http import HTTPStatus

import psycopg
import pytest
from django.db import IntegrityError, connections, transaction
from django.test import Client

from gpuworker.manifest import Manifest
from modelsvc.models import ModelRoute
from modelsvc.routes import routes_load
from modelsvc.services import ModelUnknown, RouteUnknown, SmallerCircular, route_smaller_set, version_publish
from tenants.models import AuditEntry, User
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import model_create


@pytest.fixture
def models(database: Database) -> None:
    for slug in ("large", "medium", "small"):
        model_create(slug)


def smaller_set(slug: str, smaller: str) -> ModelRoute:
    with operator_scope():
        return route_smaller_set(slug=slug, smaller=smaller, actor="operator")


def at_the_gateway(database: Database) -> dict[str, str]:
    async def load() -> dict[str, str]:
        async with await psycopg.AsyncConnection.connect(database.gateway_url) as conn:
            return {route.slug: route.smaller for route in await routes_load(conn)}

    return asyncio.run(load())


def audited() -> list[tuple[str, str, str]]:
    with operator_scope():
        entries = AuditEntry.unscoped.filter(action="route.smaller").order_by("sequence")
        return [
            (entry.target, diff["before"], diff["after"])
            for entry in entries
            for diff in [json.loads(entry.diff)]
        ]


@pytest.mark.usefixtures("models")
def test_it_is_set_and_unset_and_each_change_is_a_revision_and_an_entry(database: Database) -> None:
    revisions = [smaller_set("large", smaller).revision for smaller in ("small", "small", "medium", "")]
    assert revisions == [2, 2, 3, 4]
    assert audited() == [("large", "", "small"), ("large", "small", "medium"), ("large", "medium", "")]
    smaller_set("large", "medium")
    smaller_set("medium", "small")
    assert at_the_gateway(database) == {"large": "medium", "medium": "small", "small": ""}


@pytest.mark.usefixtures("models")
def test_no_circle_is_closed(database: Database) -> None:
    smaller_set("large", "medium")
    smaller_set("medium", "small")
    for slug, smaller in (("small", "large"), ("small", "medium"), ("small", "small"), ("medium", "large")):
        with pytest.raises(SmallerCircular):
            smaller_set(slug, smaller)
    assert at_the_gateway(database)["small"] == ""
    with operator_scope():
        route = ModelRoute.objects.get(model__slug="small")
        with pytest.raises(IntegrityError), transaction.atomic(using="operator"):
            ModelRoute.objects.filter(pk=route.pk).update(smaller=route.model)


@pytest.mark.usefixtures("models")
def test_two_operators_at_once_close_no_circle(database: Database) -> None:
    refused: list[str] = []
    start = threading.Barrier(2)

    def act(slug: str, smaller: str) -> None:
        start.wait()
        try:
            smaller_set(slug, smaller)
        except SmallerCircular:
            refused.append(slug)
        finally:
            connections.close_all()

    for _ in range(5):
        threads = [
            threading.Thread(target=act, args=pair) for pair in (("large", "small"), ("small", "large"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        for slug in ("large", "small"):
            smaller_set(slug, "")
    assert len(refused) == 5


@pytest.mark.usefixtures("models")
def test_only_what_requests_can_run_on_stands_in(database: Database) -> None:
    with operator_scope():
        unrouted = Manifest("d" * 64, (), {"max_position_embeddings": 256})
        version_publish(slug="unrouted", name="u", owned_by="u", manifest=unrouted, actor="operator")
    for smaller in ("absent", "unrouted"):
        with pytest.raises(RouteUnknown):
            smaller_set("large", smaller)
    with pytest.raises(RouteUnknown):
        smaller_set("unrouted", "small")
    with pytest.raises(ModelUnknown):
        smaller_set("absent", "small")
    assert audited() == []


@pytest.mark.usefixtures("models")
def test_an_operator_says_it_in_the_admin(database: Database, admin_user: User) -> None:
    client = Client()
    assert client.login(username="admin", password="admin-password")
    with operator_scope():
        route = ModelRoute.objects.get(model__slug="large")
    path, chosen = "/admin/modelsvc/modelroute/", {"action": "stand_in", "_selected_action": str(route.pk)}
    assert client.post(path, chosen).status_code == HTTPStatus.OK  # asks
    answered = client.post(path, chosen | {"confirmed": "1", "smaller": " small "})
    assert answered.status_code == HTTPStatus.FOUND
    refused = client.post(path, chosen | {"confirmed": "1", "smaller": "large"}, follow=True)
    assert "large itself" in refused.content.decode()
    assert audited() == [("large", "", "small")]
    assert "small" in client.get(path).content.decode()
