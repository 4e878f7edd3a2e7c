"""`/v1/stream` as an ASGI application but for its first argument: the upgrade is judged, then served."""

from collections.abc import Awaitable, Callable

from gateway.errors import ApiError
from gateway.http.exchange import Receive, Scope, Send
from gateway.runtime import Gateway
from gateway.websocket.connection import StreamSocket
from gateway.websocket.upgrade import admit, refuse, subprotocol

ROUTE = "/v1/stream"  # in metrics


async def stream_socket(
    gateway_of: Callable[[], Awaitable[Gateway]], scope: Scope, receive: Receive, send: Send
) -> None:
    gateway = await gateway_of()
    await receive()  # websocket.connect
    try:
        grant = admit(gateway, scope)
    except ApiError as error:
        gateway.metrics.responses.labels(ROUTE, str(error.status), error.code).inc()
        await refuse(scope, send, error)
        return
    gateway.metrics.responses.labels(ROUTE, "101", "").inc()
    socket = StreamSocket(gateway, grant, scope, receive, send)
    gateway.sockets.add(socket)  # from here on a revoked key closes it
    try:
        await send({"type": "websocket.accept", "subprotocol": subprotocol(scope)})
        await socket.run()
    finally:
        gateway.sockets.discard(socket)
