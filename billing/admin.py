"""Admin pages of billing: everything is read-only, but a new price version may be published."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db import models
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminSplitDateTimeWidget

from billing.models import IdempotencyRecord, LedgerEntry, Price, UsageConflict, UsageEvent, WorkerUsage
from billing.services import PriceBackdated, price_publish, price_version_next


class ReadOnlyAdmin(ModelAdmin):
    """Rows that only the platform itself writes: millions, so lists are ordered, and filtered, by an index.

    A filter over a plain text field, or a date hierarchy, would read the whole table for its choices.
    """

    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


@admin.register(UsageEvent)
class UsageEventAdmin(ReadOnlyAdmin):
    list_display = (
        "occurred_at",
        "tenant",
        "model",
        "outcome",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "cost_micro_usd",
        "request_id",
        "attempt",
    )
    list_filter = ("outcome", "recorded_at")
    list_select_related = ("tenant",)
    search_fields = ("request_id__exact",)
    ordering = ("-recorded_at",)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = (
        "created_at",
        "account",
        "amount_micro_usd",
        "currency",
        "txn_id",
        "request_id",
        "attempt",
    )
    list_filter = ("created_at", "tenant")
    search_fields = ("request_id__exact", "txn_id__exact")
    ordering = ("-created_at",)


@admin.register(UsageConflict)
class UsageConflictAdmin(ReadOnlyAdmin):
    list_display = ("recorded_at", "tenant", "request_id", "attempt")
    list_filter = ("tenant",)
    list_select_related = ("tenant",)
    search_fields = ("request_id__exact",)
    exclude = ("fingerprint",)


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(ReadOnlyAdmin):
    list_display = ("created_at", "tenant", "request_id", "state", "attempt", "status", "owner", "expires_at")
    list_filter = ("state",)
    list_select_related = ("tenant",)
    search_fields = ("request_id__exact",)
    ordering = ("-expires_at",)
    exclude = ("key", "fingerprint", "answer")

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[models.Model]:
        records: models.QuerySet[models.Model] = super().get_queryset(request)
        return records.defer("answer")  # up to a mebibyte, and sealed


@admin.register(WorkerUsage)
class WorkerUsageAdmin(ReadOnlyAdmin):
    list_display = (
        "collected_at",
        "tenant",
        "model",
        "worker",
        "reason",
        "prompt_tokens",
        "output_tokens",
        "settled",
        "request_id",
    )
    list_filter = ("settled", "collected_at")
    list_select_related = ("tenant",)
    search_fields = ("request_id__exact",)


class PriceForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A new version; a moment that was already billed is refused beside its field."""

    effective_from = forms.SplitDateTimeField(
        required=False, widget=UnfoldAdminSplitDateTimeWidget(), help_text="Empty: from now on."
    )

    class Meta:
        model = Price
        fields = (
            "model",
            "prompt_micro_usd_per_mtok",
            "cached_micro_usd_per_mtok",
            "output_micro_usd_per_mtok",
            "effective_from",
        )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "model" in cleaned and cleaned.get("effective_from"):
            try:
                price_version_next(
                    model=cleaned["model"], effective_from=cleaned["effective_from"], now=timezone.now()
                )
            except PriceBackdated as refusal:
                self.add_error("effective_from", str(refusal))
        return cleaned


@admin.register(Price)
class PriceAdmin(ReadOnlyAdmin):
    list_display = (
        "model",
        "version",
        "prompt_micro_usd_per_mtok",
        "cached_micro_usd_per_mtok",
        "output_micro_usd_per_mtok",
        "effective_from",
    )
    list_filter = ("model",)
    form = PriceForm

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return request.user.has_perm("billing.add_price")

    def save_model(self, request: HttpRequest, obj: Price, form: PriceForm, change: bool) -> None:
        published = price_publish(
            model=obj.model,
            prompt_micro_usd_per_mtok=obj.prompt_micro_usd_per_mtok,
            cached_micro_usd_per_mtok=obj.cached_micro_usd_per_mtok,
            output_micro_usd_per_mtok=obj.output_micro_usd_per_mtok,
            effective_from=obj.effective_from,
            actor=request.user.get_username(),
        )
        obj.pk, obj.version = published.pk, published.version
