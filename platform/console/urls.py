"""Addresses of the console, below /console/."""

from django.urls import path

from console import views

app_name = "console"
urlpatterns = [
    path("", views.fleet_now, name="fleet"),
    path("metrics", views.metrics, name="metrics"),
    path("components/", views.components, name="components"),
    path("session/", views.session_state, name="session"),
    path("login/", views.ConsoleLogin.as_view(), name="login"),
    path("logout/", views.ConsoleLogout.as_view(), name="logout"),
]
