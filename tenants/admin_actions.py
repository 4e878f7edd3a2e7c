"""An admin action that asks before it acts: a form between the choice of rows and the service."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib.admin import ModelAdmin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

CONFIRMED = "confirmed"  # name of the form's button


def answer_ask(
    model_admin: "ModelAdmin[Any]",
    request: HttpRequest,
    queryset: QuerySet[Any],
    form_class: type[forms.Form],
    *,
    action: str,
    title: str,
    initial: Mapping[str, Any] | None = None,
) -> dict[str, Any] | HttpResponse:
    """The form's cleaned data once it was sent and is valid; until then the page that asks for it."""
    is_sent = CONFIRMED in request.POST
    form = form_class(request.POST) if is_sent else form_class(initial=dict(initial or {}))
    if is_sent and form.is_valid():
        return form.cleaned_data
    rows: list[models.Model] = list(queryset)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": title,
        "opts": model_admin.opts,
        "form": form,
        "rows": rows,
        "action": action,
        "checkbox": ACTION_CHECKBOX_NAME,
        "confirmed": CONFIRMED,
    }
    return TemplateResponse(request, "admin/tenants/action_form.html", context)
