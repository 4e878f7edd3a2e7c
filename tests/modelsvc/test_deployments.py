"""How many replicas are to run: who says it, what is refused, and how the fleet is compared with it."""

import logging
from io import StringIO

import msgspec
import pytest
import redis
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from devservices.valkey import ValkeyServer
from gpuworker.manifest import Manifest
from gpuworker.wire.messages import FleetState, WorkerView
from modelsvc.controller.deployments import SHORT_S, DeploymentWatch
from modelsvc.controller.publisher import state_document
from modelsvc.deployments import Wanted, deployment_set, deployment_views, deployments_wanted
from modelsvc.fleet_contracts import FLEET_KEY, DeploymentView
from modelsvc.models import MAX_REPLICAS, Deployment, ModelVersion
from modelsvc.services import (
    ModelUnknown,
    RouteUnknown,
    VersionInUse,
    VersionRetired,
    VersionUnknown,
    version_publish,
    version_retire,
)
from tenants.models import AuditEntry
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import model_create

OPERATOR = "operator"


def deploy(replicas: int, *, slug: str = "test-model", role: str = "both", digest: str = "") -> Deployment:
    with operator_scope():
        return deployment_set(slug=slug, replicas=replicas, role=role, digest=digest, actor=OPERATOR)


@pytest.fixture
def version(database: Database) -> ModelVersion:
    """Routed."""
    return model_create()


def publish(slug: str) -> ModelVersion:
    manifest = Manifest("a" * 64, (), {"max_position_embeddings": 256})
    with operator_scope():
        return version_publish(slug=slug, name=slug, owned_by="somebody", manifest=manifest, actor=OPERATOR)


def worker(name: str, digest: str, state: str = "ready", serves: str = "both") -> WorkerView:
    nothing = {
        field.name: 0
        for field in msgspec.structs.fields(WorkerView)
        if field.required and field.type in (int, float)
    }
    named = {"id": name, "incarnation": name, "model": "test-model", "address": ""}
    return WorkerView(**nothing, **named, digest=digest, state=state, serves=serves)  # type: ignore[arg-type]


def fleet(*workers: WorkerView) -> FleetState:
    return FleetState(
        seq=1, at_ms=1, workers=list(workers), queues=[], gateways=[], submitted=0, refused=0, tokens_per_s=0
    )


def test_a_number_is_set_changed_and_audited(version: ModelVersion) -> None:
    assert deploy(2).revision == 1
    assert deploy(2).revision == 1
    assert deploy(1, role="prefill", digest=version.digest).role == "prefill"
    assert deploy(3).revision == 2
    with operator_scope():
        entries = AuditEntry.unscoped.filter(action="deployment.set").order_by("sequence")
        assert [(entry.actor, entry.target) for entry in entries] == [(OPERATOR, "test-model")] * 3
        assert '"after": 3' in entries[2].diff or '"after":3' in entries[2].diff
        wanted = deployments_wanted()
    assert [(one.role, one.replicas) for one in wanted] == [("both", 3), ("prefill", 1)]


def test_what_makes_no_sense_is_refused(database: Database, version: ModelVersion) -> None:
    for error, chosen in (
        (ModelUnknown, {"slug": "nobody"}),
        (VersionUnknown, {"digest": "f" * 64}),
        (ValidationError, {"role": "both-of-them"}),
    ):
        with pytest.raises(error):
            deploy(1, **chosen)
    for replicas in (-1, MAX_REPLICAS + 1):
        with pytest.raises(ValidationError):
            deploy(replicas)
    publish("unrouted")
    with pytest.raises(RouteUnknown):
        deploy(1, slug="unrouted")


def test_a_version_that_is_deployed_cannot_retire_and_a_retired_one_is_not_deployed(
    version: ModelVersion,
) -> None:
    other = publish("other")
    deploy(1, slug="other", digest=other.digest)
    with operator_scope(), pytest.raises(VersionInUse, match="deployed"):
        version_retire(slug="other", digest=other.digest, actor=OPERATOR)
    deploy(0, slug="other", digest=other.digest)
    with operator_scope():
        version_retire(slug="other", digest=other.digest, actor=OPERATOR)
    with pytest.raises(VersionRetired):
        deploy(1, slug="other", digest=other.digest)


def test_a_worker_counts_for_its_weights_and_its_role() -> None:
    wanted = [Wanted("m", "a", "both", 2), Wanted("m", "a", "prefill", 1), Wanted("m", "b", "both", 1)]
    views = deployment_views(
        wanted,
        [
            worker("w0", "a"),
            worker("w1", "a", "warming"),
            worker("w2", "a", serves="prefill"),
            worker("w3", "c"),
        ],
    )
    assert [(view.wanted, view.ready, view.others) for view in views] == [(2, 1, 1), (1, 1, 0), (1, 0, 0)]


def test_it_tells_once_of_replicas_that_are_missing(caplog: pytest.LogCaptureFixture) -> None:
    watch = DeploymentWatch()
    watch._wanted = [Wanted("m", "a", "both", 2)]
    with caplog.at_level(logging.INFO):
        for now_s in (0.0, SHORT_S - 1, SHORT_S, SHORT_S + 1, SHORT_S * 3):
            watch.observe(fleet(worker("w0", "a")), now_s)
        watch.observe(fleet(worker("w0", "a"), worker("w1", "a")), SHORT_S * 4)
        watch.observe(fleet(worker("w0", "a")), SHORT_S * 5)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "1 of 2" in caplog.text


def test_the_command_says_what_runs_and_metrics_do(version: ModelVersion, valkey: ValkeyServer) -> None:
    out, errors = StringIO(), StringIO()
    with redis.Redis.from_url(valkey.url) as client:
        client.delete(FLEET_KEY)
    call_command("deployment", "set", "test-model", "2", stdout=out)
    call_command("deployment", "list", stdout=out, stderr=errors)
    assert "? of 2 ready" in out.getvalue()
    assert "controller" in errors.getvalue()
    view = DeploymentView(model="test-model", digest=version.digest, role="both", wanted=2, ready=1, others=0)
    with redis.Redis.from_url(valkey.url) as client:
        client.set(FLEET_KEY, msgspec.json.encode(state_document(fleet(), [view])))
    call_command("deployment", "list", stdout=out, stderr=errors)
    assert "1 of 2 ready" in out.getvalue()
    families = text_string_to_metric_families(Client().get("/console/metrics").content.decode())
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert (samples["sluice_deployment_wanted"], samples["sluice_deployment_ready"]) == (2, 1)
    with pytest.raises(CommandError, match="model_unknown"):
        call_command("deployment", "set", "nobody", "1", stdout=out)
