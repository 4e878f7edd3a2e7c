"""Publishing and routing: one switch is one revision, and every gateway hears of it at the commit."""

import asyncio

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, transaction

from gpuworker.manifest import Manifest
from modelsvc.contracts import ModelRoute as RouteContract
from modelsvc.models import Model, ModelRoute, ModelVersion
from modelsvc.routes import routes_load
from modelsvc.selectors import route_of, versions_of
from modelsvc.services import (
    ModelUnknown,
    RouteUnknown,
    VersionConflict,
    VersionInUse,
    VersionRetired,
    VersionUnknown,
    route_limit_set,
    route_switch,
    version_publish,
    version_retire,
)
from tenants.audit import audit_verify
from tenants.models import AuditEntry
from tenants.scoping import operator_scope
from tests.conftest import Database

OLD, NEW, OTHER = ("a" * 64, "b" * 64, "c" * 64)


def publish(digest: str, slug: str = "tiny") -> ModelVersion:
    manifest = Manifest(digest, (), {"max_position_embeddings": 256})
    return version_publish(
        slug=slug, name=slug.title(), owned_by="somebody", manifest=manifest, actor="operator"
    )


def switch(digest: str, slug: str = "tiny") -> ModelRoute:
    return route_switch(slug=slug, digest=digest, actor="operator")


def limit(max_output_tokens: int | None) -> ModelRoute:
    return route_limit_set(slug="tiny", max_output_tokens=max_output_tokens, actor="operator")


def audited() -> list[str]:
    return [entry.action for entry in AuditEntry.unscoped.order_by("sequence")]


async def gateway_routes(database: Database) -> list[RouteContract]:
    async with await psycopg.AsyncConnection.connect(database.gateway_url) as connection:
        return await routes_load(connection)


def test_publishing_again_changes_nothing(database: Database) -> None:
    with operator_scope():
        first, again = publish(OLD), publish(OLD)
        assert first.pk == again.pk
        assert first.max_context_tokens == 256
        assert list(versions_of("tiny")) == [first]
        assert audited() == ["version.publish"]


def test_publishing_routes_nothing(database: Database) -> None:
    with operator_scope():
        publish(OLD)
        assert route_of("tiny") is None


def test_each_switch_is_one_revision_and_one_audit_entry(database: Database) -> None:
    with operator_scope():
        for digest in (OLD, NEW):
            publish(digest)
        assert [switch(digest).revision for digest in (OLD, NEW, NEW, OLD)] == [1, 2, 2, 3]
        route = route_of("tiny")
        assert route is not None
        assert (route.version.digest, route.revision) == (OLD, 3)
        assert audited() == ["version.publish"] * 2 + ["route.switch"] * 3
        assert audit_verify(tenant_id=None) is None


def test_a_models_output_is_bounded_whichever_version_runs(database: Database) -> None:
    with operator_scope():
        for digest in (OLD, NEW):
            publish(digest)
        with pytest.raises(RouteUnknown):
            limit(500)
        switch(OLD)
        assert [limit(value).revision for value in (500, 500, None, 700)] == [2, 2, 3, 4]
        assert (switch(NEW).revision, route_of("tiny").max_output_tokens) == (5, 700)  # type: ignore[union-attr]
        with pytest.raises(ValidationError):
            limit(0)
        with pytest.raises(ModelUnknown):
            route_limit_set(slug="absent", max_output_tokens=1, actor="operator")
        assert audited()[3:] == ["route.limit"] * 3 + ["route.switch"]
        assert audit_verify(tenant_id=None) is None
    [route] = asyncio.run(gateway_routes(database))
    assert (route.digest, route.max_output_tokens, route.revision) == (NEW, 700, 5)


def test_weights_belong_to_one_model(database: Database) -> None:
    with operator_scope():
        publish(OLD)
        with pytest.raises(VersionConflict):
            publish(OLD, slug="another")
        assert [model.slug for model in Model.objects.all()] == ["tiny"]


@pytest.mark.parametrize("slug", ["", "two words", "-dash", "new\nline", "trailing\n", "é", "x" * 201])
def test_slug_that_does_not_fit_a_url_is_refused(database: Database, slug: str) -> None:
    with operator_scope():
        with pytest.raises(ValidationError):
            publish(OLD, slug=slug)
        with pytest.raises((IntegrityError, DatabaseError)), transaction.atomic(using="operator"):
            Model.objects.create(slug=slug, name="x", owned_by="x")
        assert not Model.objects.exists()


def test_refused_switch_changes_nothing(database: Database) -> None:
    with operator_scope():
        publish(OLD)
        publish(OTHER, slug="another")
        switch(OLD)
        with pytest.raises(VersionUnknown):
            switch(OTHER)
        with pytest.raises(ModelUnknown):
            switch(OLD, slug="absent")
        route = route_of("tiny")
        assert route is not None
        assert (route.version.digest, route.revision) == (OLD, 1)


def test_retired_version_takes_no_route_and_routed_version_is_not_retired(database: Database) -> None:
    with operator_scope():
        publish(OLD)
        publish(NEW)
        switch(NEW)
        with pytest.raises(VersionInUse):
            version_retire(slug="tiny", digest=NEW, actor="operator")
        version_retire(slug="tiny", digest=OLD, actor="operator")
        with pytest.raises(VersionRetired):
            switch(OLD)
        assert audited()[-1] == "version.retire"


def test_database_keeps_a_route_on_versions_of_its_model(database: Database) -> None:
    with operator_scope():
        publish(OLD)
        foreign = publish(OTHER, slug="another")
        switch(OLD)
        with (
            pytest.raises(IntegrityError, match="route_version_of_model"),
            transaction.atomic(using="operator"),
        ):
            ModelRoute.objects.filter(model__slug="tiny").update(version=foreign)


def test_only_operators_write(database: Database) -> None:
    with operator_scope():
        publish(OLD)
        switch(OLD)
    assert route_of("tiny") is not None
    with pytest.raises(DatabaseError, match="permission denied"):
        publish(NEW)
    with pytest.raises(DatabaseError, match="permission denied"):
        ModelRoute.objects.update(revision=9)
    with (
        psycopg.connect(database.gateway_url) as gateway,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        gateway.execute("UPDATE modelsvc_modelroute SET revision = 9")
    with operator_scope(), pytest.raises(DatabaseError, match="permission denied"):
        ModelVersion.objects.filter(digest=OLD)._raw_delete("operator")


def test_gateways_are_told_of_a_switch_at_its_commit_and_not_of_a_refused_one(database: Database) -> None:
    with psycopg.connect(database.gateway_url, autocommit=True) as gateway, operator_scope():
        publish(OLD)
        publish(NEW)
        switch(OLD)
        gateway.execute("LISTEN sluice_snapshot")
        with pytest.raises(VersionUnknown):
            switch(OTHER)
        with transaction.atomic(using="operator"):
            switch(NEW)
            assert list(gateway.notifies(timeout=0.2)) == []
        (heard,) = gateway.notifies(timeout=5, stop_after=1)
        assert (heard.channel, heard.payload) == ("sluice_snapshot", "modelsvc_modelroute")


def test_gateway_reads_the_routes_with_their_revision(database: Database) -> None:
    with operator_scope():
        publish(OLD)
        publish(NEW)
        publish(OTHER, slug="another")
        switch(OLD)
        switch(NEW)
        created_at = Model.objects.get(slug="tiny").created_at
    assert asyncio.run(gateway_routes(database)) == [
        RouteContract(
            slug="tiny",
            digest=NEW,
            max_context_tokens=256,
            owned_by="somebody",
            created_at=created_at,
            revision=2,
        )
    ]
