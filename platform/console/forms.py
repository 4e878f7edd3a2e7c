"""Log-in forms of the console and of the administration: staff only, and slowed down after failures."""

from collections.abc import Callable
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from unfold.forms import AuthenticationForm as UnfoldAuthenticationForm

from console.throttle import PAUSE_S, login_admitted, login_succeeded
from tenants.scoping import operator_scope

REFUSED = "That user name and password do not match an operator account."
BLOCKED = f"Too many failed attempts. Try again in {PAUSE_S // 60} minutes."
# One message for every refusal, so that it tells nothing about which accounts exist.
MESSAGES: Any = {"invalid_login": REFUSED, "inactive": REFUSED, "blocked": BLOCKED}


class LoginForm(AuthenticationForm):
    """The console's."""

    error_messages = MESSAGES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.widget.attrs["class"] = "input"
            if self.is_bound and self.errors:
                field.widget.attrs["aria-invalid"] = "true"
                field.widget.attrs["aria-describedby"] = "login-error"
                field.widget.attrs["autofocus"] = name == "password"

    def clean(self) -> dict[str, Any]:
        return _throttled(self, super().clean)

    def confirm_login_allowed(self, user: AbstractBaseUser) -> None:
        if not (user.is_active and getattr(user, "is_staff", False)):
            raise self.get_invalid_login_error()


class AdminLoginForm(UnfoldAuthenticationForm):  # type: ignore[misc]  # unfold is untyped
    """The administration's: its own widgets, the same rules. It lets staff in only, by itself."""

    error_messages = MESSAGES

    def clean(self) -> dict[str, Any]:
        return _throttled(self, super().clean)


def _throttled(form: AuthenticationForm, clean: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Raises ValidationError, after a pause was begun even when the password is right."""
    username = form.cleaned_data.get("username") or ""
    address = form.request.META.get("REMOTE_ADDR", "") if form.request is not None else ""
    if not login_admitted(username, address):
        raise ValidationError(BLOCKED, code="blocked")
    # A right password hashed by older rules is hashed anew, which the application role may not write.
    with operator_scope():
        cleaned = clean()
    login_succeeded(username, address)
    return cleaned
