"""URLs of the Django part. `config.asgi` sends `/v1`, the probes and `/metrics` to the gateway instead."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(url="/console/")),
    path("admin/", admin.site.urls),
    path("console/", include("console.urls")),
]
