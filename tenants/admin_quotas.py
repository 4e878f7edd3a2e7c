"""Admin pages of quotas: set one, change it, remove it. Services write; money is shown in dollars."""

from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminIntegerFieldWidget

from tenants.admin_forms import tenant_open
from tenants.admin_rows import ServiceAdmin
from tenants.contracts import QUOTAS_WITH_BURST
from tenants.models import MAX_QUOTA, Quota, Tenant
from tenants.quota_amounts import UNITS, amount_of, amount_shown, amount_stored
from tenants.quotas import QuotaUnknown, quota_remove, quota_set
from tenants.services import TenantClosed


class QuotaForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A new quota, or new figures of the one with the same name and subject."""

    amount = forms.DecimalField(
        min_value=Decimal("0.000001"),
        max_value=MAX_QUOTA,
        decimal_places=6,
        widget=UnfoldAdminDecimalFieldWidget,
        help_text=(
            "Tokens a minute, requests a minute, requests at a time; of spend US dollars a day or a month of"
            " UTC, with up to six decimals."
        ),
    )
    burst = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_QUOTA,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=(
            "Of a quota per minute: how many tokens or requests may come at once after a pause."
            " Empty: as many as in a minute."
        ),
    )

    class Meta:
        model = Quota
        fields = ("tenant", "name", "key", "model")
        help_texts = {
            "name": "What is bounded. Setting it again for the same subject replaces the figures.",
            "key": "Bounds this key alone. Neither key nor model: the tenant in all.",
            "model": "Bounds the tenant's requests of this model alone: the name that requests use.",
        }

    def clean_tenant(self) -> Tenant:
        return tenant_open(self.cleaned_data["tenant"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        key, tenant, name = cleaned.get("key"), cleaned.get("tenant"), cleaned.get("name")
        if key and cleaned.get("model"):
            self.add_error("model", "A quota is of a key or of a model, not of both.")
        if key and tenant and key.tenant_id != tenant.id:
            self.add_error("key", "This key is another tenant's.")
        if name and cleaned.get("burst") and name not in QUOTAS_WITH_BURST:
            self.add_error("burst", "Only a quota per minute has a burst.")
        if name and "amount" in cleaned:
            try:
                cleaned["limit"] = amount_stored(name, cleaned["amount"])
            except ValidationError as error:
                self.add_error("amount", error)
        return cleaned


@admin.register(Quota)
class QuotaAdmin(ServiceAdmin):
    list_display = ("tenant", "of", "name", "amount", "unit", "burst", "updated_at")
    list_filter = ("name", "scope", "tenant")
    list_select_related = ("tenant", "key")
    search_fields = ("tenant__slug", "key__public_id", "model")
    autocomplete_fields = ("tenant", "key")
    form = QuotaForm
    actions = ("change", "remove")

    def get_fields(self, request: HttpRequest, obj: Quota | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("tenant", "name", "key", "model", "amount", "burst")
        return ("tenant", "scope", "key", "model", "name", "amount", "unit", "burst", "updated_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Quota | None = None) -> tuple[str, ...]:
        return () if obj is None else ("amount", "unit", "updated_at")

    @admin.display(description="of")
    def of(self, quota: Quota) -> str:
        return quota.subject or "all requests"

    @admin.display(ordering="limit")
    def amount(self, quota: Quota) -> str:
        return amount_shown(quota)

    @admin.display(ordering="name")
    def unit(self, quota: Quota) -> str:
        return UNITS[quota.name]

    def save_model(self, request: HttpRequest, obj: Quota, form: QuotaForm, change: bool) -> None:
        cleaned = form.cleaned_data
        quota = quota_set(
            tenant_id=obj.tenant_id,
            name=obj.name,
            limit=cleaned["limit"],
            burst=cleaned["burst"],
            key_id=obj.key_id,
            model=obj.model,
            actor=request.user.get_username(),
        )
        obj.id, obj.limit, obj.scope = quota.id, quota.limit, quota.scope

    @admin.action(description="Change the figures of the selected quota", permissions=["manage"])
    def change(self, request: HttpRequest, queryset: QuerySet[Quota]) -> HttpResponseRedirect | None:
        """The form for a new one, filled in: setting it again replaces the figures."""
        if queryset.count() != 1:
            self.message_user(request, "Select one quota to change.", messages.ERROR)
            return None
        quota = queryset.get()
        filled = {
            "tenant": quota.tenant_id,
            "name": quota.name,
            "key": quota.key_id or "",
            "model": quota.model,
            "amount": f"{amount_of(quota):f}",
            "burst": quota.burst or "",
        }
        return HttpResponseRedirect(f"{reverse('admin:tenants_quota_add')}?{urlencode(filled)}")

    @admin.action(description="Remove selected quotas", permissions=["manage"])
    def remove(self, request: HttpRequest, queryset: QuerySet[Quota]) -> None:
        for quota in queryset:
            try:
                quota_remove(tenant_id=quota.tenant_id, quota_id=quota.id, actor=request.user.get_username())
            except (QuotaUnknown, TenantClosed) as refusal:
                self.message_user(request, f"{refusal}.", messages.ERROR)
            else:
                self.message_user(request, f"{quota}: removed, gateways follow at once.", messages.SUCCESS)
