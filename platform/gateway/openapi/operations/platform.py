"""Health, metrics and the reference itself. None of them needs a key."""

from typing import Any

from gateway.openapi.objects import platform
from gateway.openapi.operations.base import Operation

PLATFORM_OPERATIONS = (
    Operation(
        method="get",
        path="/health",
        id="getHealth",
        tag="Platform",
        summary="Ready, in one status",
        description="An empty 200 when a request sent now would be served, else 503.",
        media="",
        other={503: ("A request sent now would not be served.", platform.Unhealthy)},
        is_public=True,
    ),
    Operation(
        method="get",
        path="/healthz",
        id="getHealthz",
        tag="Platform",
        summary="Alive",
        answer=platform.Alive,
        answer_example={"status": "ok"},
        is_public=True,
    ),
    Operation(
        method="get",
        path="/readyz",
        id="getReadyz",
        tag="Platform",
        summary="Ready, with what is missing",
        answer=platform.Readiness,
        answer_example={"ready": True, "missing": []},
        other={503: ("A request sent now would not be served.", platform.Readiness)},
        is_public=True,
    ),
    Operation(
        method="get",
        path="/metrics",
        id="getMetrics",
        tag="Platform",
        summary="Metrics in Prometheus' format",
        media="text/plain",
        is_public=True,
    ),
    Operation(
        method="get",
        path="/v1/openapi.json",
        id="getOpenapi",
        tag="Platform",
        summary="This reference as an OpenAPI document",
        answer=dict[str, Any],
        is_public=True,
    ),
    Operation(
        method="get",
        path="/docs",
        id="getDocs",
        tag="Platform",
        summary="This reference as a page",
        media="text/html",
        is_public=True,
    ),
)
