"""What the admin pages of rows that services write have in common."""

from django.http import HttpRequest
from unfold.admin import ModelAdmin


class ServiceAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Rows are added through a service, changed by actions, and never edited or deleted by hand."""

    show_full_result_count = False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_manage_permission(self, request: HttpRequest) -> bool:
        """Who may run the actions: whoever could have changed the rows."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")
