"""Admin pages of users and groups, which Django's own forms write; each write is audited."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from tenants.audit import Value, audit_write
from tenants.models import User
from tenants.scoping import alias_current

admin.site.unregister(Group)


class AccountAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Written by superusers only: whoever may edit accounts or groups can give himself every other right.

    Nothing is deleted: the audit log names it. Each write leaves an audit entry, in its transaction.
    """

    audited: tuple[str, ...] = ()  # fields whose new values the entry tells

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.is_superuser

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return request.user.is_superuser

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def log_addition(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        self._audit(request, obj, "create", [])
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        changed = [str(name) for part in message for name in part.get("changed", {}).get("fields", ())]
        self._audit(request, obj, "change", changed)
        return super().log_change(request, obj, message)

    def _audit(self, request: HttpRequest, obj: models.Model, verb: str, changed: list[str]) -> None:
        diff: dict[str, Value] = {name: getattr(obj, name) for name in self.audited}
        audit_write(
            tenant_id=None,
            actor=request.user.get_username(),
            action=f"{self.opts.model_name}.{verb}",
            target=str(obj),
            diff=diff | {"changed": changed},
        )


@admin.register(User)
class UserAdmin(DjangoUserAdmin, AccountAdmin):  # type: ignore[type-arg]  # not generic at run time
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    audited = ("is_active", "is_staff", "is_superuser")

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        with transaction.atomic(using=alias_current()):
            return super().user_change_password(request, id, form_url)


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, AccountAdmin):  # type: ignore[misc]  # unfold has no types
    pass
