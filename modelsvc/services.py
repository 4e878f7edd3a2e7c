"""Every write to the model registry, one transaction each, with an audit entry on the platform's own chain.

Called by operators, inside `operator_scope()`; the database refuses the other roles.
"""

import json
from collections.abc import Mapping

from django.db import connections, transaction
from django.utils import timezone

from gpuworker.manifest import Manifest
from modelsvc.fleet_contracts import CLOCK_SET_BACK_MS
from modelsvc.models import Deployment, Model, ModelRoute, ModelVersion
from tenants.audit import Value, audit_write
from tenants.models import AuditEntry
from tenants.scoping import alias_current

LEVEL_ACTION = "model.level"


class RegistryError(Exception):
    """The registry refuses the change; nothing was written."""

    code = "registry_error"


class ModelUnknown(RegistryError):
    code = "model_unknown"


class VersionUnknown(RegistryError):
    code = "version_unknown"


class RouteUnknown(RegistryError):
    code = "route_unknown"


class SmallerCircular(RegistryError):
    """A model would stand in for itself, at once or by way of others."""

    code = "smaller_circular"


class VersionConflict(RegistryError):
    """The same weights are already a version of another model."""

    code = "version_conflict"


class VersionRetired(RegistryError):
    code = "version_retired"


class VersionInUse(RegistryError):
    code = "version_in_use"


def version_publish(*, slug: str, name: str, owned_by: str, manifest: Manifest, actor: str) -> ModelVersion:
    """Enters weights that are in the store. Publishing again changes nothing; no request is routed by it."""
    with transaction.atomic(using=alias_current()):
        model = Model.objects.filter(slug=slug).first()
        if model is None:
            model = Model(slug=slug, name=name, owned_by=owned_by)
            model.full_clean()
            model, _ = Model.objects.get_or_create(slug=slug, defaults={"name": name, "owned_by": owned_by})
        version, published = ModelVersion.objects.get_or_create(
            digest=manifest.digest,
            defaults={
                "model": model,
                "max_context_tokens": manifest.max_context_tokens,
                "manifest": manifest.as_dict(),
            },
        )
        if version.model_id != model.id:
            raise VersionConflict(f"{manifest.digest} is already a version of {version.model.slug}")
        if published:
            _audit(actor, "version.publish", slug, {"digest": manifest.digest})
        return version


def route_switch(*, slug: str, digest: str, actor: str) -> ModelRoute:
    """Sends the model's next requests to that version. The gateways hear of it at the commit."""
    with transaction.atomic(using=alias_current()):
        model = model_lock(slug)
        version = version_lock(model, digest)
        if version.state == ModelVersion.State.RETIRED:
            raise VersionRetired(f"{digest} is retired")
        route = ModelRoute.objects.filter(model=model).first()
        if route is not None and route.version_id == version.id:
            return route
        before = None if route is None else route.version.digest
        if route is None:
            route = ModelRoute.objects.create(model=model, version=version, revision=1)
        else:
            route.version = version
            route.revision += 1
            route.save(update_fields=("version", "revision", "updated_at"))
        _audit(actor, "route.switch", slug, {"before": before, "after": digest, "revision": route.revision})
        return route


def route_limit_set(*, slug: str, max_output_tokens: int | None, actor: str) -> ModelRoute:
    """Bounds the output of the model's next requests, whichever version runs. Raises ModelUnknown,
    RouteUnknown, ValidationError."""
    with transaction.atomic(using=alias_current()):
        route = _route_lock(slug)
        if route.max_output_tokens == max_output_tokens:
            return route
        before, route.max_output_tokens = route.max_output_tokens, max_output_tokens
        route.revision += 1
        route.clean_fields()
        route.save(update_fields=("max_output_tokens", "revision", "updated_at"))
        diff = {"before": before, "after": max_output_tokens, "revision": route.revision}
        _audit(actor, "route.limit", slug, diff)
        return route


def route_smaller_set(*, slug: str, smaller: str, actor: str) -> ModelRoute:
    """What tenants who accept it get under pressure: a routed model's slug, "" for nothing.

    Raises ModelUnknown, RouteUnknown, SmallerCircular.
    """
    with transaction.atomic(using=alias_current()):
        route = _route_lock(slug)
        with connections[alias_current()].cursor() as cursor:  # two changes could close a circle together
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('modelsvc: smaller', 0))")
        target = _smaller_find(slug, smaller) if smaller else None
        before = route.smaller.slug if route.smaller else ""
        if before == smaller:
            return route
        route.smaller = target
        route.revision += 1
        route.save(update_fields=("smaller", "revision", "updated_at"))
        diff: dict[str, Value] = {"before": before, "after": smaller, "revision": route.revision}
        _audit(actor, "route.smaller", slug, diff)
        return route


def _smaller_find(slug: str, smaller: str) -> Model:
    smaller_of = dict(ModelRoute.objects.values_list("model__slug", "smaller__slug"))
    if smaller not in smaller_of:
        raise RouteUnknown(f"{smaller} has no route")
    step: str | None = smaller
    for _ in smaller_of:  # no chain is longer
        if step == slug:
            raise SmallerCircular(f"{smaller} is {slug} itself, or leads to it")
        step = smaller_of.get(step) if step else None
    return Model.objects.get(slug=smaller)


def level_record(*, slug: str, level: int, at_ms: int, queued: int, oldest_ms: int, actor: str) -> bool:
    """Tells the audit log how far a model's service is degraded, as the fleet state of `at_ms` (Unix) says.

    Once, however many controllers see that state: False when the log tells of this level, or of a later
    moment, already. `queued` and `oldest_ms` are of the requests that waited then.
    """
    alias = alias_current()
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:  # no registry row: a fleet may serve what is not in it
            cursor.execute("SET LOCAL statement_timeout = '10s'")  # nobody sees a controller wait
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('level: ' || %s, 0))", [slug])
        entries = AuditEntry.unscoped.filter(tenant=None, action=LEVEL_ACTION, target=slug)
        entry = entries.order_by("-sequence").first()
        last: dict[str, int] = json.loads(entry.diff) if entry else {"after": 0, "at_ms": 0}
        # A moment that is still to come is of a dispatcher whose clock was wrong: nothing is late by it.
        is_late = at_ms <= last["at_ms"] <= timezone.now().timestamp() * 1000 + CLOCK_SET_BACK_MS
        if is_late or level == last["after"]:
            return False
        diff = {"before": last["after"], "after": level, "at_ms": at_ms}
        _audit(actor, LEVEL_ACTION, slug, {**diff, "queued": queued, "oldest_ms": oldest_ms})
        return True


def version_retire(*, slug: str, digest: str, actor: str) -> ModelVersion:
    """No route may lead to it any more. Refused while one does, or replicas of it are deployed."""
    with transaction.atomic(using=alias_current()):
        model = model_lock(slug)
        version = version_lock(model, digest)
        if ModelRoute.objects.filter(version=version).exists():
            raise VersionInUse(f"{slug} runs on {digest}: switch its route first")
        if Deployment.objects.filter(version=version, replicas__gt=0).exists():
            raise VersionInUse(f"replicas of {digest} are deployed: set their number to 0 first")
        if version.state != ModelVersion.State.RETIRED:
            version.state = ModelVersion.State.RETIRED
            version.save(update_fields=("state",))
            _audit(actor, "version.retire", slug, {"digest": digest})
        return version


def model_lock(slug: str) -> Model:
    """Lock order: the model's row first. It serialises every change to the model's versions and route.

    Others may refer to the model meanwhile: their foreign keys are looked at when they hold the audit lock.
    """
    model = Model.objects.select_for_update(no_key=True).filter(slug=slug).first()
    if model is None:
        raise ModelUnknown(f"no model is called {slug}")
    return model


def _route_lock(slug: str) -> ModelRoute:
    route = ModelRoute.objects.select_related("smaller").filter(model=model_lock(slug)).first()
    if route is None:
        raise RouteUnknown(f"{slug} has no route yet")
    return route


def version_lock(model: Model, digest: str) -> ModelVersion:
    version = ModelVersion.objects.select_for_update().filter(model=model, digest=digest).first()
    if version is None:
        raise VersionUnknown(f"{model.slug} has no version {digest}")
    return version


def _audit(actor: str, action: str, slug: str, diff: Mapping[str, Value]) -> None:
    audit_write(tenant_id=None, actor=actor, action=action, target=slug, diff=diff)
