"""The console's pages: log-in, fleet now, components; and the fleet for Prometheus."""

import time
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import NON_FIELD_ERRORS
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from console.access import staff_only
from console.contracts import FleetUnavailable
from console.fleet import CHART_SERIES, EMPTY, fleet_page
from console.forms import LoginForm
from console.metrics import fleet_metrics
from console.samples import component_samples
from console.selectors import fleet_read


@require_safe
@staff_only
def fleet_now(request: HttpRequest) -> HttpResponse:
    """The fleet as of now; the page goes on live over /ws/console/fleet/."""
    try:
        snapshot, _ = fleet_read()
        problem = ""
    except FleetUnavailable as error:
        snapshot, problem = None, str(error)
    context = {
        "section": "fleet",
        "published": snapshot is not None,
        "page": fleet_page(snapshot or EMPTY, time.time_ns() // 1_000_000),
        "problem": problem,
        "chart_series": CHART_SERIES,
        "blank": {"kv_share": 0.0},  # the row that the browser copies for a new replica
    }
    return render(request, "console/fleet.html", context)


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Without a log-in, as `/metrics`. A scrape fails when the state is not known."""
    try:
        snapshot, _ = fleet_read()
    except FleetUnavailable as error:
        return HttpResponse(f"{error}\n", content_type="text/plain", status=503)
    if snapshot is None:
        problem = "Nobody publishes the state of the fleet: no controller runs, or no dispatcher.\n"
        return HttpResponse(problem, content_type="text/plain", status=503)
    body = fleet_metrics(snapshot, time.time_ns() // 1_000_000)
    return HttpResponse(body, content_type=CONTENT_TYPE_LATEST)


@require_safe
@never_cache
def session_state(request: HttpRequest) -> JsonResponse:
    """Whether the viewer may still see the console; asked by a page whose WebSocket was refused."""
    return JsonResponse({"staff": request.user.is_active and request.user.is_staff})


@require_safe
@staff_only
def components(request: HttpRequest) -> HttpResponse:
    """Every component of the design system, in one place."""
    return render(request, "console/components.html", {**component_samples(), "section": "components"})


class ConsoleLogin(LoginView):
    """Log-in of operators, for the console and the administration alike."""

    template_name = "console/login.html"
    authentication_form = LoginForm
    next_page = "console:fleet"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        user = self.request.user
        other = user.get_username() if user.is_authenticated and not user.is_staff else ""
        return super().get_context_data(other_account=other, **kwargs)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        blocked = form.has_error(NON_FIELD_ERRORS, "blocked")
        return self.render_to_response(self.get_context_data(form=form), status=429 if blocked else 200)


class ConsoleLogout(LogoutView):
    next_page = "console:login"
