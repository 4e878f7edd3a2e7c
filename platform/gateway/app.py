"""The ASGI application: routes a path to its handler, and starts the process's parts on first use.

Servers without lifespan events are served too; where they come, start and stop are prompt.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.dialects.anthropic.messages import MESSAGES
from gateway.dialects.openai.chat import CHAT
from gateway.dialects.registry import ENDPOINTS
from gateway.dialects.tgi.generate import GENERATE
from gateway.endpoints import catalog, counting, generate, reference, streams, usage_report
from gateway.errors import ApiError
from gateway.garbage import collector_tune
from gateway.http.exchange import JSON_HEADERS, ClientLeft, Exchange, Receive, Scope, Send
from gateway.runtime import Gateway
from gateway.serving.admission import key_authenticate
from gateway.settings import Settings, settings_from_environment
from gateway.websocket import app as websocket

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


async def moderations(gateway: Gateway, exchange: Exchange) -> None:
    key_authenticate(gateway, exchange.headers)
    raise ApiError("not_implemented", "this platform has no moderation model yet")


async def upgrade_require(_: Gateway, __: Exchange) -> None:
    headers = [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    raise ApiError("upgrade_required", "this is a WebSocket: open it with an upgrade", headers=headers)


# A last part in braces stands for any; what follows the path's fixed part is the handler's to read.
ROUTES: dict[str, dict[str, Handler]] = {
    "/healthz": {"GET": healthz},
    "/health": {"GET": catalog.tgi_health},
    "/readyz": {"GET": readyz},
    "/metrics": {"GET": metrics},
    "/info": {"GET": catalog.tgi_info},
    "/docs": {"GET": reference.docs_page},
    "/v1/openapi.json": {"GET": reference.openapi_document},
    "/v1/models": {"GET": catalog.models_list},
    "/v1/models/{id}": {"GET": catalog.model_get},
    "/v1/messages/count_tokens": {"POST": counting.count_tokens},
    "/v1/moderations": {"POST": moderations},
    websocket.ROUTE: {"GET": upgrade_require},
    "/v1/streams/{id}": {"GET": streams.stream_resume, "DELETE": streams.stream_cancel},
    "/v1/usage/{id}": {"GET": usage_report.usage_get},
    **{path: {"POST": partial(generate.generate, dialect)} for path, dialect in ENDPOINTS.items()},
}
_WITH_ID = tuple(path.removesuffix("{id}") for path in ROUTES if path.endswith("{id}"))
_UNCOUNTED = frozenset({"/healthz", "/health", "/readyz", "/metrics"})
_ERRORS_AS = {**ENDPOINTS, "/v1/messages/count_tokens": MESSAGES, "/info": GENERATE}


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
            except asyncio.CancelledError:
                # The server stops. One without a lifespan waits for its requests alone: they wait for usage.
                await gateway.settled()
                raise
            finally:
                gateway.open_requests -= 1
        elif scope["type"] == "websocket":
            await websocket.stream_socket(self.gateway, scope, receive, send)
        else:
            raise ValueError(f"the gateway does not speak {scope['type']}")

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
        collector_tune()
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
        await _refuse(exchange, name, error)
    except ClientLeft:
        code = "client_left"
    except Exception:
        code = "internal_error"
        logger.exception("request %s failed", exchange.request_id)
        if exchange.has_begun:
            exchange.abort()
            raise
        await _refuse(exchange, name, ApiError("internal_error", "the gateway failed on this request"))
    finally:
        if name in ROUTES and name not in _UNCOUNTED:
            gateway.metrics.responses.labels(name, str(exchange.status), code).inc()


async def _refuse(exchange: Exchange, name: str, error: ApiError) -> None:
    status, body = _ERRORS_AS.get(name, CHAT).error(error, str(exchange.request_id))
    await exchange.respond(status, body, [*JSON_HEADERS, *error.headers])


def _route_name(path: str) -> str:
    for prefix in _WITH_ID:
        if path.startswith(prefix) and len(path) > len(prefix):
            return prefix + "{id}"
    return path


def _handler(exchange: Exchange, name: str) -> Handler:
    methods = ROUTES.get(name)
    if methods is None:
        raise ApiError("unknown_url", f"there is nothing at {exchange.method} {exchange.path}")
    is_whole = name != "/v1/streams/{id}"  # of which the head alone would take as long as the stream
    handler = methods.get("GET" if exchange.method == "HEAD" and is_whole else exchange.method)
    if handler is None:
        allowed = [(b"allow", ", ".join(methods).encode())]
        raise ApiError("method_not_allowed", f"{exchange.method} is not allowed here", headers=allowed)
    return handler


application = Application(settings_from_environment)
