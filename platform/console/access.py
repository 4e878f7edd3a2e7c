"""Who may see a console page. The content security policy of these pages is `config.middleware`'s."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.views.decorators.cache import never_cache

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def staff_only(view: View[P]) -> View[P]:
    """Others are sent to the console's log-in and come back after it. Nothing is kept in caches."""

    @never_cache
    @wraps(view)
    def wrapped(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if request.user.is_active and request.user.is_staff:
            return view(request, *args, **kwargs)
        return redirect_to_login(request.get_full_path(), resolve_url("console:login"))

    return wrapped
