"""System checks: what `manage.py check` refuses beyond Django's own list."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, register

from tenants.scoping import TenancyUndeclared, tenancy_of


@register("tenancy")
def tenancy_check(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Every model says whether its rows belong to a tenant; an undeclared one is an error, not a default."""
    found: list[CheckMessage] = []
    for model in apps.get_models(include_auto_created=True):
        try:
            tenancy = tenancy_of(model)
        except TenancyUndeclared as undeclared:
            found.append(Error(str(undeclared), obj=model, id="sluice.E001"))
            continue
        if tenancy == "tenant" and model._default_manager.name != "unscoped":
            found.append(
                Error(
                    "A tenant model keeps `objects` for the scoped manager and names `unscoped` its default.",
                    hint="Inherit from tenants.scoping.TenantModel.",
                    obj=model,
                    id="sluice.E002",
                )
            )
    return found
