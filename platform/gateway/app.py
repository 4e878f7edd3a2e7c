"""The ASGI application: routes a path to its handler, and starts the process's parts on first use.

Servers without lifespan events are served too; where they come, start and stop are prompt.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from gateway import catalog, pipeline
from gateway.errors import ApiError
from gateway.http import ClientLeft, Exchange, Receive, Scope, Send
from gateway.runtime import Gateway
from gateway.settings import Settings, settings_from_environment

Handler = Callable[[Gateway, Exchange], Awaitable[None]]
SignalHandler = Callable[[int, FrameType | None], object]

logger = logging.getLogger(__name__)


async def healthz(_: Gateway, exchange: Exchange) -> None:
    """Alive: the event loop answers."""
    await exchange.respond(200, b'{"status":"ok"}')


async def readyz(gateway: Gateway, exchange: Exchange) -> None:
    """Ready: a request sent now would be served."""
    missing = gateway.missing()
    body = msgspec.json.encode({"ready": not missing, "missing": missing})
    await exchange.respond(503 if missing else 200, body)


async def metrics(gateway: Gateway, exchange: Exchange) -> None:
    gateway.measure()
    content_type = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
    await exchange.respond(200, gateway.metrics.render(), content_type)


ROUTES: dict[str, dict[str, Handler]] = {
    "/healthz": {"GET": healthz},
    "/readyz": {"GET": readyz},
    "/metrics": {"GET": metrics},
    "/v1/models": {"GET": catalog.models_list},
    "/v1/models/{id}": {"GET": catalog.model_get},
    "/v1/chat/completions": {"POST": pipeline.chat_completions},
    "/v1/completions": {"POST": pipeline.completions},
}
_COUNTED = frozenset({"/v1/models", "/v1/models/{id}", "/v1/chat/completions", "/v1/completions"})


class Application:
    """`settings` is called on first use, inside the running event loop."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._starting: asyncio.Task[Gateway] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            gateway = await self.gateway()
            gateway.open_requests += 1
            try:
                await _serve(gateway, Exchange(scope, receive, send))
            finally:
                gateway.open_requests -= 1
        else:
            raise ValueError(f"the gateway speaks http, not {scope['type']}")

    async def gateway(self) -> Gateway:
        """The one of this process; a failed start is tried again by the next caller."""
        starting = self._starting
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception())):
            starting = self._starting = asyncio.create_task(Gateway.start(self._settings()))
        return await asyncio.shield(starting)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            gateway = await self.gateway()
        except Exception as error:
            logger.exception("the gateway cannot start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        _signals_chain(gateway.stop_begin)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await gateway.close()
        await send({"type": "lifespan.shutdown.complete"})


def _signals_chain(stop_begin: Callable[[], None]) -> None:
    """The lifespan's shutdown event comes after the server has cancelled its requests: too late to end them.

    The server's own handlers are called as before, and it puts back what was there before them.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # signals are for the main thread alone; such a server is stopped by its owner
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        server_handler = signal.getsignal(number)
        if not callable(server_handler):
            continue

        def handle(
            received: int, frame: FrameType | None, server_handler: SignalHandler = server_handler
        ) -> None:
            loop.call_soon_threadsafe(stop_begin)
            server_handler(received, frame)

        signal.signal(number, handle)


async def _serve(gateway: Gateway, exchange: Exchange) -> None:
    name = _route_name(exchange.path)
    code = ""
    try:
        await _handler(exchange, name)(gateway, exchange)
    except ApiError as error:
        code = error.code
        await exchange.respond_error(error)
    except ClientLeft:
        code = "client_left"
    except Exception:
        code = "internal_error"
        logger.exception("request %s failed", exchange.request_id)
        if exchange.has_begun:
            exchange.abort()
            raise
        await exchange.respond_error(ApiError("internal_error", "the gateway failed on this request"))
    finally:
        if name in _COUNTED:
            gateway.metrics.responses.labels(name, str(exchange.status), code).inc()


def _route_name(path: str) -> str:
    if path.startswith("/v1/models/") and len(path) > len("/v1/models/"):
        return "/v1/models/{id}"
    return path


def _handler(exchange: Exchange, name: str) -> Handler:
    methods = ROUTES.get(name)
    if methods is None:
        raise ApiError("unknown_url", f"there is nothing at {exchange.method} {exchange.path}")
    handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
    if handler is None:
        allowed = [(b"allow", ", ".join(methods).encode())]
        raise ApiError("method_not_allowed", f"{exchange.method} is not allowed here", headers=allowed)
    return handler


application = Application(settings_from_environment)
