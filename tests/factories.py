"""Rows for tests, made through production's own services. For sync code, with the `database` fixture."""

import hashlib
from datetime import UTC, datetime
from itertools import count
from uuid import UUID

from billing.models import Price
from billing.services import price_publish
from gpuworker.manifest import Manifest
from modelsvc.models import ModelVersion
from modelsvc.services import route_switch, version_publish
from tenants import services
from tenants.models import Tenant
from tenants.scoping import operator_scope

ACTOR = "test"
_number = count(1)


def tenant_create(slug: str | None = None, *, name: str | None = None) -> Tenant:
    slug = slug or f"tenant-{next(_number)}"
    with operator_scope():
        return services.tenant_create(slug=slug, name=name or slug, actor=ACTOR)


def key_create(
    tenant: Tenant | UUID,
    *,
    name: str = "test key",
    allowed_models: list[str] | None = None,
    expires_at: datetime | None = None,
) -> str:
    """The plaintext of a new key."""
    return key_issue(tenant, name=name, allowed_models=allowed_models, expires_at=expires_at).plaintext


def key_issue(
    tenant: Tenant | UUID,
    *,
    name: str = "test key",
    allowed_models: list[str] | None = None,
    expires_at: datetime | None = None,
) -> services.IssuedKey:
    with operator_scope():
        return services.key_issue(
            tenant_id=tenant.id if isinstance(tenant, Tenant) else tenant,
            name=name,
            actor=ACTOR,
            allowed_models=allowed_models,
            expires_at=expires_at,
        )


def model_create(slug: str = "test-model", *, max_context_tokens: int = 2048) -> ModelVersion:
    """A routed model whose weights are nowhere: its digest is the slug's hash."""
    manifest = Manifest(
        digest=hashlib.sha256(slug.encode()).hexdigest(),
        files=(),
        config={"max_position_embeddings": max_context_tokens},
    )
    with operator_scope():
        version = version_publish(slug=slug, name=slug, owned_by="test", manifest=manifest, actor=ACTOR)
        route_switch(slug=slug, digest=manifest.digest, actor=ACTOR)
    return version


def price_create(
    model: str = "test-model",
    *,
    prompt: int = 150_000,
    cached: int = 75_000,
    output: int = 600_000,
    effective_from: datetime = datetime(2020, 1, 1, tzinfo=UTC),
) -> Price:
    """A price in micro-dollars per million tokens, effective long ago unless said otherwise."""
    with operator_scope():
        return price_publish(
            model=model,
            prompt_micro_usd_per_mtok=prompt,
            cached_micro_usd_per_mtok=cached,
            output_micro_usd_per_mtok=output,
            actor=ACTOR,
            effective_from=effective_from,
        )
