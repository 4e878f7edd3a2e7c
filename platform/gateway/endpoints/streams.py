"""`/v1/streams/{request_id}`: go on with a stream that was cut, or end one that nobody wants any more."""

from gateway.access.auth import SCOPE_COMPLETIONS, scope_require
from gateway.answers.delivery import Delivery
from gateway.answers.served import sse_framing
from gateway.answers.stream_id import StreamId
from gateway.endpoints.watching import Watch
from gateway.errors import ApiError
from gateway.http.exchange import Exchange
from gateway.runtime import Gateway
from gateway.serving.admission import key_authenticate, reading_slot
from gateway.serving.resuming import expired, resume, stream_end

PREFIX = "/v1/streams/"
_MAX_NUMBER_DIGITS = 10


async def stream_resume(gateway: Gateway, exchange: Exchange) -> None:
    """Everything after event n, from `Last-Event-ID: <stream id>:<n>` or `?after=n`, and then what comes.

    Raises ApiError while the status is still open: 410 when there is nothing to go on with.
    """
    grant = key_authenticate(gateway, exchange.headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    stream_id, after = _place(exchange)
    with reading_slot(gateway, grant):
        served = await resume(gateway, grant, stream_id, after, sse_framing)
        exchange.request_id = stream_id.request_id
        with Watch(exchange).delivering(gateway, served):
            try:
                await Delivery(exchange, served.answer, gateway.limits, served.headers).run()
            except ApiError as error:
                raise (expired() if error.code == "gateway_lost" else error) from error


async def stream_cancel(gateway: Gateway, exchange: Exchange) -> None:
    """Nobody wants it any more: it ends now, here or elsewhere. Raises ApiError when there is none."""
    grant = key_authenticate(gateway, exchange.headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    request_id = StreamId.parse(exchange.path.removeprefix(PREFIX)).request_id
    await stream_end(gateway, grant, request_id)
    await exchange.respond(202, b'{"cancelled":true}')


def _place(exchange: Exchange) -> tuple[StreamId, int]:
    """Which stream, and the number of the last event that was seen. Raises ApiError."""
    named = StreamId.parse(exchange.path.removeprefix(PREFIX))
    last = exchange.headers.get(b"last-event-id", b"").decode("latin-1")
    if not last:
        return named, _number(exchange.query("after") or "0", "after")
    name, _, number = last.rpartition(":")
    if not name.startswith(str(named.request_id)):
        raise ApiError("invalid_value", "last-event-id is of another stream", param="last-event-id")
    return StreamId.parse(name), _number(number, "last-event-id")


def _number(text: str, param: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER_DIGITS:
        return int(text)
    raise ApiError("invalid_value", f"{param} must end in the number of an event", param=param)
