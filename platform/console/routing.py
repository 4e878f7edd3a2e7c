"""WebSocket addresses of the console."""

from typing import Any

from django.urls import path

from console.consumers import FleetConsumer

# Any: an ASGI application where the type stubs of Django know views only.
FLEET: Any = FleetConsumer.as_asgi()

websocket_urlpatterns: list[Any] = [path("ws/console/fleet/", FLEET)]
