"""Admin pages of the model registry: read what is there; the actions call services."""

from django import forms
from django.contrib import admin, messages
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from modelsvc.deployments import deployment_set
from modelsvc.models import MAX_REPLICAS, Deployment, Model, ModelRoute, ModelVersion, Upstream
from modelsvc.services import (
    RegistryError,
    route_limit_set,
    route_smaller_set,
    route_switch,
    version_retire,
)
from modelsvc.upstreams import upstream_enable
from tenants.admin_actions import answer_ask


class LimitForm(forms.Form):
    max_output_tokens = forms.IntegerField(
        required=False,
        validators=[MinValueValidator(1)],
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Of one request. Empty: only the context bounds it.",
    )


class SmallerForm(forms.Form):
    smaller = forms.CharField(
        required=False,
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="A routed model, which tenants who accept it get under pressure. Empty: nothing instead.",
    )


class ReplicasForm(forms.Form):
    replicas = forms.IntegerField(
        validators=[MinValueValidator(0), MaxValueValidator(MAX_REPLICAS)],
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="That are to run. Your supervisor starts them; 0: none.",
    )


class RegistryAdmin(ModelAdmin):
    """Rows are made by an import and changed by actions; none is edited or deleted by hand.

    Not even with every field read-only: saving that form would write the old route back over a newer one.
    """

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Model)
class RegisteredModelAdmin(RegistryAdmin):
    list_display = ("slug", "name", "owned_by", "created_at")
    search_fields = ("slug", "name", "owned_by")
    readonly_fields = ("slug", "name", "owned_by", "created_at")


@admin.register(ModelVersion)
class ModelVersionAdmin(RegistryAdmin):
    list_display = ("model", "digest", "state", "max_context_tokens", "created_at")
    list_filter = ("state", "model")
    list_select_related = ("model",)
    search_fields = ("digest", "model__slug")
    readonly_fields = ("model", "digest", "state", "max_context_tokens", "manifest", "created_at")
    actions = ("route_here", "retire")

    def has_switch_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("modelsvc.change_modelversion")

    @admin.action(description="Route the model's requests to this version", permissions=["switch"])
    def route_here(self, request: HttpRequest, queryset: QuerySet[ModelVersion]) -> None:
        for version in queryset.select_related("model"):
            try:
                route = route_switch(
                    slug=version.model.slug, digest=version.digest, actor=request.user.get_username()
                )
            except RegistryError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                text = f"{version.model.slug} now runs on {version.digest[:12]} (revision {route.revision})"
                self.message_user(request, text, messages.SUCCESS)

    @admin.action(description="Retire this version", permissions=["switch"])
    def retire(self, request: HttpRequest, queryset: QuerySet[ModelVersion]) -> None:
        for version in queryset.select_related("model"):
            try:
                version_retire(
                    slug=version.model.slug, digest=version.digest, actor=request.user.get_username()
                )
            except RegistryError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self.message_user(request, f"{version.digest[:12]} is retired", messages.SUCCESS)


@admin.register(Upstream)
class UpstreamAdmin(RegistryAdmin):
    """Made and changed by `manage.py upstream`. The key is in no field, sealed or not."""

    list_display = ("name", "kind", "flavour", "url", "version", "model_name", "is_enabled", "has_key")
    list_filter = ("kind", "is_enabled")
    list_select_related = ("version", "version__model")
    search_fields = ("name", "url", "version__model__slug")
    fields = (
        *("name", "kind", "flavour", "url", "version", "model_name", "revision", "max_rows", "options"),
        *("is_enabled", "has_key", "created_at", "updated_at"),
    )
    readonly_fields = fields
    actions = ("enable", "disable")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Upstream]:
        upstreams: QuerySet[Upstream] = super().get_queryset(request)
        return upstreams.defer("sealed_key").annotate(has_key_=Q(sealed_key__isnull=False))

    @admin.display(boolean=True, description="Has a key")
    def has_key(self, upstream: Upstream) -> bool:
        return bool(getattr(upstream, "has_key_", False))

    def has_switch_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("modelsvc.change_upstream")

    @admin.action(description="Start a worker for it, with the next start", permissions=["switch"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Upstream]) -> None:
        self._enable(request, queryset, is_enabled=True)

    @admin.action(description="Start no worker for it any more", permissions=["switch"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Upstream]) -> None:
        self._enable(request, queryset, is_enabled=False)

    def _enable(self, request: HttpRequest, queryset: QuerySet[Upstream], *, is_enabled: bool) -> None:
        for name in list(queryset.values_list("name", flat=True)):
            try:
                upstream_enable(name=name, is_enabled=is_enabled, actor=request.user.get_username())
            except RegistryError as error:
                self.message_user(request, str(error), messages.ERROR)
        self.message_user(request, "Said: workers that run now are left as they are.", messages.SUCCESS)


@admin.register(ModelRoute)
class ModelRouteAdmin(RegistryAdmin):
    list_display = ("model", "version", "max_output_tokens", "smaller", "revision", "updated_at")
    list_select_related = ("model", "version", "version__model", "smaller")
    search_fields = ("model__slug", "version__digest")
    readonly_fields = ("model", "version", "max_output_tokens", "smaller", "revision", "updated_at")
    actions = ("limit", "stand_in")

    def has_limit_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("modelsvc.change_modelroute")

    @admin.action(description="Limit the output of the model's requests", permissions=["limit"])
    def limit(self, request: HttpRequest, queryset: QuerySet[ModelRoute]) -> HttpResponse | None:
        first = queryset.values("max_output_tokens").first()
        answer = answer_ask(self, request, queryset, LimitForm, action="limit", title="Set", initial=first)
        if isinstance(answer, HttpResponse):
            return answer
        for route in queryset.select_related("model"):
            route_limit_set(slug=route.model.slug, actor=request.user.get_username(), **answer)
        self.message_user(request, "Set: gateways follow at once.", messages.SUCCESS)
        return None

    @admin.action(description="Say which smaller model stands in under pressure", permissions=["limit"])
    def stand_in(self, request: HttpRequest, queryset: QuerySet[ModelRoute]) -> HttpResponse | None:
        first = {"smaller": queryset.values_list("smaller__slug", flat=True).first() or ""}
        answer = answer_ask(
            self, request, queryset, SmallerForm, action="stand_in", title="Set", initial=first
        )
        if isinstance(answer, HttpResponse):
            return answer
        for route in queryset.select_related("model"):
            try:
                route_smaller_set(slug=route.model.slug, actor=request.user.get_username(), **answer)
            except RegistryError as error:
                self.message_user(request, f"{route.model.slug}: {error}", messages.ERROR)
            else:
                self.message_user(request, f"{route.model.slug}: set.", messages.SUCCESS)
        return None


@admin.register(Deployment)
class DeploymentAdmin(RegistryAdmin):
    """Made by `manage.py deployment`. What runs of them is in the fleet's metrics."""

    list_display = ("version", "role", "replicas", "revision", "updated_at")
    list_filter = ("role", "version__model")
    list_select_related = ("version", "version__model")
    search_fields = ("version__digest", "version__model__slug")
    readonly_fields = ("version", "role", "replicas", "revision", "updated_at")
    actions = ("scale",)

    def has_scale_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("modelsvc.change_deployment")

    @admin.action(description="Say how many replicas are to run", permissions=["scale"])
    def scale(self, request: HttpRequest, queryset: QuerySet[Deployment]) -> HttpResponse | None:
        first = queryset.values("replicas").first()
        answer = answer_ask(self, request, queryset, ReplicasForm, action="scale", title="Set", initial=first)
        if isinstance(answer, HttpResponse):
            return answer
        actor = request.user.get_username()
        for deployment in queryset.select_related("version", "version__model"):
            version = deployment.version
            slug, digest, role = version.model.slug, version.digest, deployment.role
            try:
                deployment_set(slug=slug, digest=digest, role=role, actor=actor, **answer)
            except RegistryError as error:
                self.message_user(request, f"{version}: {error}", messages.ERROR)
            else:
                self.message_user(request, f"{version}: set.", messages.SUCCESS)
        return None
