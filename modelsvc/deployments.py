"""How many replicas of a version are to run: the one write, and what the controller compares the fleet with.

Called inside `operator_scope()`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from django.db import transaction

from gpuworker.wire.messages import WorkerView
from modelsvc.fleet_contracts import DeploymentView
from modelsvc.models import Deployment, ModelRoute, ModelVersion
from modelsvc.services import RouteUnknown, VersionRetired, model_lock, version_lock
from tenants.audit import audit_write
from tenants.scoping import alias_current


class Wanted(NamedTuple):
    model: str
    digest: str
    role: str
    replicas: int


def deployment_set(*, slug: str, replicas: int, role: str, actor: str, digest: str = "") -> Deployment:
    """So many are to run from now on; 0: none. Without a digest, of the version that the model's route names.

    Raises ModelUnknown, VersionUnknown, RouteUnknown, VersionRetired, ValidationError.
    """
    with transaction.atomic(using=alias_current()):
        model = model_lock(slug)
        if not digest:
            route = ModelRoute.objects.select_related("version").filter(model=model).first()
            if route is None:
                raise RouteUnknown(f"{slug} has no route yet: name a digest")
            digest = route.version.digest
        version = version_lock(model, digest)
        if replicas and version.state == ModelVersion.State.RETIRED:
            raise VersionRetired(f"{digest} is retired")
        deployment = Deployment.objects.filter(version=version, role=role).first()
        if deployment is None:
            deployment = Deployment(version=version, role=role, replicas=0, revision=0)
        elif deployment.replicas == replicas:
            return deployment
        before, deployment.replicas = deployment.replicas, replicas
        deployment.revision += 1
        deployment.full_clean()
        if deployment.revision == 1:
            deployment.save(force_insert=True)
        else:
            deployment.save(update_fields=("replicas", "revision", "updated_at"))
        audit_write(
            tenant_id=None,
            actor=actor,
            action="deployment.set",
            target=slug,
            diff={"digest": digest, "role": role, "before": before, "after": replicas},
        )
        return deployment


def deployments_wanted() -> list[Wanted]:
    """By model; those of none are left out."""
    rows = Deployment.objects.filter(replicas__gt=0).values_list(
        "version__model__slug", "version__digest", "role", "replicas"
    )
    return [Wanted(*row) for row in rows]


def deployment_views(wanted: Iterable[Wanted], workers: Iterable[WorkerView]) -> list[DeploymentView]:
    """What runs of them. A worker counts for the deployment of its weights and its role."""
    states: dict[tuple[str, str], list[str]] = {}
    for worker in workers:
        states.setdefault((worker.digest, worker.serves), []).append(worker.state)
    views = []
    for model, digest, role, replicas in wanted:
        found = states.get((digest, role), [])
        ready = found.count("ready")
        views.append(
            DeploymentView(
                model=model, digest=digest, role=role, wanted=replicas, ready=ready, others=len(found) - ready
            )
        )
    return views
