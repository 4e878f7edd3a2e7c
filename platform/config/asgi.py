"""The ASGI entry point: the gateway's paths beside Django's, and the console's WebSocket."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from django.core.asgi import get_asgi_application

from config import environment

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
environment.serving_require()
django_application = get_asgi_application()  # loads the apps: what follows imports models

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier  # noqa: E402
from django.urls import re_path  # noqa: E402

from console.routing import websocket_urlpatterns  # noqa: E402
from gateway.app import application as gateway_application  # noqa: E402

# Django, Channels and the gateway each type scope, receive and send in their own way.
Application = Callable[[Any, Any, Any], Awaitable[Any]]

# For unknown paths the router would raise: a traceback in the log for whatever a stranger types.
# Any: an ASGI application where the type stubs of Django know views only.
DENIER: Any = WebsocketDenier.as_asgi()
GATEWAY_PATHS = (
    "/v1",
    "/healthz",
    "/readyz",
    "/metrics",
    "/docs",
    "/generate",
    "/generate_stream",
    "/info",
    "/health",
)


class PrefixRouter:
    """HTTP by path prefix (whole path segments), everything else by scope type."""

    def __init__(
        self, *, gateway: Application, paths: tuple[str, ...], django: Application, websocket: Application
    ) -> None:
        self.gateway, self.paths, self.django, self.websocket = gateway, paths, django, websocket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._application(scope)(scope, receive, send)

    def _application(self, scope: Any) -> Application:
        if scope["type"] == "websocket":
            return self.websocket
        if scope["type"] == "lifespan":  # only the gateway has something to open and to close
            return self.gateway
        path: str = scope["path"]
        if path == "/" and scope["method"] == "POST":  # TGI's clients post their prompts there
            return self.gateway
        matches = any(path == prefix or path.startswith(prefix + "/") for prefix in self.paths)
        return self.gateway if matches else self.django


# Browsers with a session, from this site's own pages; the API's socket has keys, and its own list of origins.
SESSION_SOCKETS: Any = AllowedHostsOriginValidator(
    AuthMiddlewareStack(URLRouter([*websocket_urlpatterns, re_path("", DENIER)]))
)
API_SOCKET: Any = gateway_application

application = PrefixRouter(
    gateway=gateway_application,
    paths=GATEWAY_PATHS,
    django=django_application,
    websocket=URLRouter([re_path(r"^v1/stream$", API_SOCKET), re_path("", SESSION_SOCKETS)]),
)
