"""Admin pages of tenants, their members and keys, and the audit log. Every write is a service's."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from tenants import quotas, services
from tenants.admin_accounts import GroupAdmin, UserAdmin
from tenants.admin_actions import answer_ask
from tenants.admin_forms import (
    ApiKeyForm,
    KeyLimitForm,
    TenantCloseForm,
    TenantConsentsForm,
    TenantSettingsForm,
    TenantWeightForm,
)
from tenants.admin_quotas import QuotaAdmin
from tenants.admin_rows import ServiceAdmin
from tenants.models import ApiKey, AuditEntry, Member, Tenant, User

__all__ = [
    "ApiKeyAdmin",
    "AuditEntryAdmin",
    "GroupAdmin",
    "MemberAdmin",
    "QuotaAdmin",
    "TenantAdmin",
    "UserAdmin",
]


@admin.register(Tenant)
class TenantAdmin(ServiceAdmin):
    list_display = ("slug", "name", "status", "weight", "zero_retention", "max_output_tokens", "created_at")
    list_filter = ("status",)
    search_fields = ("slug", "name")
    fields = ("slug", "name", "zero_retention", "max_output_tokens")
    actions = ("suspend", "resume", "settings", "weight", "consents", "close")

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("slug", "name", "zero_retention", "max_output_tokens")
        return (
            *("id", "slug", "name", "status", "zero_retention", "max_output_tokens"),
            *("continues_streams", "weight", "accepts_smaller_model", "accepts_batch", "created_at"),
        )

    def save_model(
        self, request: HttpRequest, obj: Tenant, form: "forms.ModelForm[Tenant]", change: bool
    ) -> None:
        created = services.tenant_create(
            slug=obj.slug,
            name=obj.name,
            actor=request.user.get_username(),
            zero_retention=obj.zero_retention,
            max_output_tokens=obj.max_output_tokens,
        )
        obj.id = created.id

    @admin.action(description="Suspend selected tenants", permissions=["manage"])
    def suspend(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        self._each(request, queryset, "Suspended: their keys no longer work.", services.tenant_suspend)

    @admin.action(description="Resume selected tenants", permissions=["manage"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        self._each(request, queryset, "Resumed: their keys work again.", services.tenant_resume)

    @admin.action(description="Change settings of selected tenants", permissions=["manage"])
    def settings(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> HttpResponse | None:
        names = ("zero_retention", "max_output_tokens", "continues_streams")
        first = queryset.values(*names).first()
        answer = answer_ask(
            self, request, queryset, TenantSettingsForm, action="settings", title="Set", initial=first
        )
        if isinstance(answer, HttpResponse):
            return answer
        self._each(request, queryset, "Set.", services.tenant_settings_set, **answer)
        return None

    @admin.action(description="Change the weight of selected tenants", permissions=["manage"])
    def weight(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> HttpResponse | None:
        first = queryset.values("weight").first()
        answer = answer_ask(
            self, request, queryset, TenantWeightForm, action="weight", title="Set", initial=first
        )
        if isinstance(answer, HttpResponse):
            return answer
        self._each(request, queryset, "Set.", quotas.tenant_weight_set, **answer)
        return None

    @admin.action(description="Change what selected tenants accept under pressure", permissions=["manage"])
    def consents(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> HttpResponse | None:
        first = queryset.values("accepts_smaller_model", "accepts_batch").first()
        answer = answer_ask(
            self, request, queryset, TenantConsentsForm, action="consents", title="Set", initial=first
        )
        if isinstance(answer, HttpResponse):
            return answer
        self._each(request, queryset, "Set.", quotas.tenant_consents_set, **answer)
        return None

    @admin.action(description="Close selected tenants for good", permissions=["manage"])
    def close(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> HttpResponse | None:
        answer = answer_ask(self, request, queryset, TenantCloseForm, action="close", title="Close for good")
        if isinstance(answer, HttpResponse):
            return answer
        self._each(request, queryset, "Closed for good.", services.tenant_close, **answer)
        return None

    def _each(
        self,
        request: HttpRequest,
        queryset: QuerySet[Tenant],
        done: str,
        service: Callable[..., Tenant],
        **arguments: Any,
    ) -> None:
        for tenant in queryset:
            try:
                service(tenant_id=tenant.id, actor=request.user.get_username(), **arguments)
            except services.TenantClosed as refusal:
                self.message_user(request, f"{refusal}.", messages.ERROR)
            else:
                self.message_user(request, f"{tenant.slug}: {done}", messages.SUCCESS)


@admin.register(Member)
class MemberAdmin(ServiceAdmin):
    list_display = ("tenant", "user", "role", "created_at")
    list_filter = ("role",)
    list_select_related = ("tenant", "user")
    search_fields = ("tenant__slug", "user__username")
    autocomplete_fields = ("tenant", "user")
    fields = ("tenant", "user", "role")

    def save_model(
        self, request: HttpRequest, obj: Member, form: "forms.ModelForm[Member]", change: bool
    ) -> None:
        added = services.member_add(
            tenant_id=obj.tenant_id, user=obj.user, role=obj.role, actor=request.user.get_username()
        )
        obj.id = added.id


@admin.register(ApiKey)
class ApiKeyAdmin(ServiceAdmin):
    list_display = ("name", "tenant", "public_id", "last4", "created_at", "expires_at", "revoked_at")
    list_filter = ("tenant",)
    list_select_related = ("tenant",)
    search_fields = ("name", "public_id", "tenant__slug")
    autocomplete_fields = ("tenant",)
    form = ApiKeyForm
    actions = ("revoke", "limit")

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("tenant", "name", "allowed_models", "expires_at", "max_open_requests")
        return (
            *("tenant", "name", "public_id", "last4", "scopes", "allowed_models", "max_open_requests"),
            "created_by",
            *("created_at", "expires_at", "revoked_at", "last_used_at"),
        )

    def save_model(
        self, request: HttpRequest, obj: ApiKey, form: "forms.ModelForm[ApiKey]", change: bool
    ) -> None:
        issued = services.key_issue(
            tenant_id=obj.tenant_id,
            name=obj.name,
            actor=request.user.get_username(),
            allowed_models=form.cleaned_data["allowed_models"],
            expires_at=obj.expires_at,
            max_open_requests=obj.max_open_requests,
            created_by=request.user if isinstance(request.user, User) else None,
        )
        obj.id, obj.public_id, obj.last4 = issued.key.id, issued.key.public_id, issued.key.last4
        request.issued_plaintext = issued.plaintext  # type: ignore[attr-defined]  # lives for this response

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        """The only page that ever shows the key. Not a message: those travel in cookies or sessions."""
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "API key issued",
            "opts": self.opts,
            "key": obj,
            "plaintext": request.issued_plaintext,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, "admin/tenants/apikey/issued.html", context)

    @admin.action(description="Revoke selected keys", permissions=["manage"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            services.key_revoke(
                tenant_id=key.tenant_id, key_id=key.id, actor=request.user.get_username(), reason="admin"
            )
        self.message_user(request, "Revoked: these keys no longer work.", messages.SUCCESS)

    @admin.action(description="Limit the open requests of selected keys", permissions=["manage"])
    def limit(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        first = queryset.values("max_open_requests").first()
        answer = answer_ask(self, request, queryset, KeyLimitForm, action="limit", title="Set", initial=first)
        if isinstance(answer, HttpResponse):
            return answer
        for key in queryset:
            services.key_limit_set(
                tenant_id=key.tenant_id, key_id=key.id, actor=request.user.get_username(), **answer
            )
        self.message_user(request, "Set: gateways follow at once.", messages.SUCCESS)
        return None


@admin.register(AuditEntry)
class AuditEntryAdmin(ServiceAdmin):
    list_display = ("created_at", "tenant", "sequence", "actor", "action", "target")
    list_filter = ("created_at", "tenant")
    list_select_related = ("tenant",)
    search_fields = ("actor", "action", "target", "request_id")
    fields = ("created_at", "tenant", "sequence", "actor", "action", "target", "diff", "request_id")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
