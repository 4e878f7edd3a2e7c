"""Every write to the upstream servers, one transaction each, with an audit entry on the platform's own chain.

Called by operators, inside `operator_scope()`. A key is given to `upstream_launch`'s caller alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from config.environment import master_keys
from gpuworker.upstream_terms import FLAVOURS, MAX_PATIENCE_S, PATIENCE, endpoint_parse, key_problem
from modelsvc.models import ModelRoute, ModelVersion, Upstream
from modelsvc.services import RegistryError, RouteUnknown, VersionUnknown
from modelsvc.upstream_keys import upstream_key_open, upstream_key_seal
from tenants.audit import Value, audit_write
from tenants.data_keys import master_key_id
from tenants.scoping import alias_current


class UpstreamUnknown(RegistryError):
    code = "upstream_unknown"


class UpstreamExists(RegistryError):
    code = "upstream_exists"


@dataclass(frozen=True, slots=True)
class UpstreamLaunch:
    """What the worker of an upstream is started with. `options`: seconds, by the names of `PATIENCE`."""

    name: str
    kind: str
    flavour: str
    url: str
    slug: str
    digest: str
    model_name: str
    revision: str
    max_rows: int
    options: Mapping[str, float]
    key: str = field(repr=False)


def upstream_add(
    *,
    name: str,
    kind: str,
    url: str,
    slug: str,
    model_name: str,
    actor: str,
    flavour: str = "generic",
    digest: str = "",
    revision: str = "",
    max_rows: int = 64,
    options: Mapping[str, float] | None = None,
    key: str = "",
) -> Upstream:
    """Answers for the version `digest` of the model, by default the one that is routed to. Raises
    ValidationError, UpstreamExists, RouteUnknown, VersionUnknown."""
    with transaction.atomic(using=alias_current()):
        upstream = Upstream(
            name=name,
            kind=kind,
            flavour=flavour if kind == Upstream.Kind.OPENAI else "",
            url=url,
            version=_version_find(slug, digest),
            model_name=model_name,
            revision=revision,
            max_rows=max_rows,
            options=dict(options or {}),
        )
        _key_put(upstream, key)
        _check(upstream)
        try:
            with transaction.atomic(using=alias_current()):
                upstream.save(force_insert=True)
        except IntegrityError as error:
            raise UpstreamExists(f"an upstream is called {name} already") from error
        told: dict[str, Value] = {"kind": kind, "url": url, "model": slug, "digest": upstream.version.digest}
        _audit(actor, "upstream.add", name, told | {"model_name": model_name, "has_key": bool(key)})
        return upstream


def upstream_remove(*, name: str, actor: str) -> None:
    """Its worker goes on until it is stopped. Raises UpstreamUnknown."""
    with transaction.atomic(using=alias_current()):
        upstream = _lock(name)
        upstream.delete()
        _audit(actor, "upstream.remove", name, {"url": upstream.url})


def upstream_enable(*, name: str, is_enabled: bool, actor: str) -> Upstream:
    """Whether a worker is started for it. Raises UpstreamUnknown."""
    with transaction.atomic(using=alias_current()):
        upstream = _lock(name)
        if upstream.is_enabled != is_enabled:
            upstream.is_enabled = is_enabled
            upstream.save(update_fields=("is_enabled", "updated_at"))
            _audit(actor, "upstream.enable" if is_enabled else "upstream.disable", name, {})
        return upstream


def upstream_key_set(*, name: str, key: str, actor: str) -> Upstream:
    """ "" for none. Its worker has it when it is started anew. Raises UpstreamUnknown, ValidationError."""
    with transaction.atomic(using=alias_current()):
        upstream = _lock(name)
        _key_put(upstream, key)
        upstream.save(update_fields=("master_key_id", "sealed_key", "updated_at"))
        _audit(actor, "upstream.key", name, {"has_key": bool(key)})
        return upstream


def upstream_keys_rewrap(*, actor: str) -> int:
    """How many keys were still sealed by another than the first master key. Raises UpstreamKeyUnreadable."""
    keys, count = master_keys(), 0
    current = master_key_id(keys[0])
    with transaction.atomic(using=alias_current()):
        outdated = (
            Upstream.objects.select_for_update().exclude(sealed_key=None).exclude(master_key_id=current)
        )
        for upstream in outdated:
            before = upstream.master_key_id
            _key_put(upstream, _key_of(upstream))
            upstream.save(update_fields=("master_key_id", "sealed_key", "updated_at"))
            _audit(actor, "upstream.rewrap", upstream.name, {"before": before, "after": current})
            count += 1
    return count


def upstream_launch(*, name: str) -> UpstreamLaunch:
    """Raises UpstreamUnknown, UpstreamKeyUnreadable."""
    upstream = Upstream.objects.select_related("version__model").filter(name=name).first()
    if upstream is None:
        raise UpstreamUnknown(f"no upstream is called {name}")
    return UpstreamLaunch(
        name=upstream.name,
        kind=upstream.kind,
        flavour=upstream.flavour,
        url=upstream.url,
        slug=upstream.version.model.slug,
        digest=upstream.version.digest,
        model_name=upstream.model_name,
        revision=upstream.revision,
        max_rows=upstream.max_rows,
        options=upstream.options,
        key=_key_of(upstream),
    )


def _version_find(slug: str, digest: str) -> ModelVersion:
    if digest:
        version = ModelVersion.objects.filter(model__slug=slug, digest=digest).first()
        if version is None:
            raise VersionUnknown(f"{slug} has no version {digest}")
        return version
    route = ModelRoute.objects.select_related("version").filter(model__slug=slug).first()
    if route is None:
        raise RouteUnknown(f"{slug} has no route: say which version is meant")
    return route.version


def _lock(name: str) -> Upstream:
    upstream = Upstream.objects.select_for_update().filter(name=name).first()
    if upstream is None:
        raise UpstreamUnknown(f"no upstream is called {name}")
    return upstream


def _check(upstream: Upstream) -> None:
    """Raises ValidationError."""
    upstream.clean_fields()
    problems = []
    try:
        endpoint_parse(upstream.url)
    except ValueError as error:
        problems.append(str(error))
    if upstream.kind == Upstream.Kind.OPENAI and upstream.flavour not in FLAVOURS:
        problems.append(f"the flavour must be one of {', '.join(FLAVOURS)}")
    for option, seconds in upstream.options.items():
        if option not in PATIENCE:
            problems.append(f"{option} is no option; there are {', '.join(PATIENCE)}")
        elif not isinstance(seconds, int | float) or not 0 < seconds <= MAX_PATIENCE_S:
            problems.append(f"{option} must lie between 0 and {MAX_PATIENCE_S:g} seconds")
    if problems:
        raise ValidationError(problems)


def _key_put(upstream: Upstream, key: str) -> None:
    if problem := key_problem(key):
        raise ValidationError(problem)
    if key:
        upstream.master_key_id, upstream.sealed_key = upstream_key_seal(master_keys(), upstream.id, key)
    else:
        upstream.master_key_id, upstream.sealed_key = "", None


def _key_of(upstream: Upstream) -> str:
    if upstream.sealed_key is None:
        return ""
    sealed = bytes(upstream.sealed_key)
    return upstream_key_open(master_keys(), upstream.id, upstream.master_key_id, sealed)


def _audit(actor: str, action: str, name: str, diff: Mapping[str, Value]) -> None:
    audit_write(tenant_id=None, actor=actor, action=action, target=name, diff=diff)
