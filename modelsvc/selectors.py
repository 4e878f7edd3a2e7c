"""Reads of the model registry for pages and commands. The gateway reads through `routes` instead."""

from django.db.models import QuerySet

from modelsvc.models import ModelRoute, ModelVersion


def route_of(slug: str) -> ModelRoute | None:
    return ModelRoute.objects.select_related("model", "version").filter(model__slug=slug).first()


def versions_of(slug: str) -> QuerySet[ModelVersion]:
    """Newest first."""
    return ModelVersion.objects.select_related("model").filter(model__slug=slug)
