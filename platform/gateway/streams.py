"""`/v1/streams/{request_id}`: go on with a stream that was cut, or end one that nobody wants any more."""

from uuid import UUID

from gateway.admission import key_authenticate, slot
from gateway.attachment import attach
from gateway.auth import SCOPE_COMPLETIONS, scope_require
from gateway.delivery import Delivery
from gateway.errors import ApiError, overloaded
from gateway.http import Exchange, request_id_parse
from gateway.runtime import Gateway
from gateway.served import sse_framing
from gateway.token_log.log import LogUnavailable
from gateway.watching import Watch

PREFIX = "/v1/streams/"
_MAX_EVENT_NUMBER = 1 << 31


async def stream_resume(gateway: Gateway, exchange: Exchange) -> None:
    """Everything after event n, from `Last-Event-ID: <request_id>:<n>` or `?after=n`, and then what comes.

    Raises ApiError while the status is still open: 410 when there is nothing to go on with.
    """
    grant = key_authenticate(gateway, exchange.headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    request_id = request_id_parse(exchange.path.removeprefix(PREFIX))
    after = _after(exchange, request_id)
    with slot(gateway, grant):
        served = await attach(gateway, grant, request_id, sse_framing, is_numbered=True, after=after)
        if served is None:
            raise _expired()
        exchange.request_id = request_id
        with Watch(exchange).delivering(gateway, served):
            try:
                await Delivery(exchange, served.answer, gateway.limits, served.headers).run()
            except ApiError as error:
                raise (_expired() if error.code == "gateway_lost" else error) from error


async def stream_cancel(gateway: Gateway, exchange: Exchange) -> None:
    """Nobody wants it any more: its grace period ends now. Raises ApiError when there is no such stream."""
    grant = key_authenticate(gateway, exchange.headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    request_id = request_id_parse(exchange.path.removeprefix(PREFIX))
    job = gateway.job_find(grant.tenant_id, request_id)
    if job is not None:
        job.cancel("cancelled")
    else:
        try:
            if await gateway.token_log.find(grant.tenant_id, request_id, grant.data_key) is None:
                raise ApiError("request_not_found", f"there is no stream {request_id}")
            await gateway.token_log.cancel(grant.tenant_id, request_id)
        except LogUnavailable as error:
            raise overloaded("the logs of running answers cannot be reached now") from error
    await exchange.respond(202, b'{"cancelled":true}')


def _after(exchange: Exchange, request_id: UUID) -> int:
    last = exchange.headers.get(b"last-event-id", b"").decode("latin-1")
    if last:
        name, _, number = last.rpartition(":")
        if name != str(request_id):
            raise ApiError("invalid_value", "last-event-id is of another stream", param="last-event-id")
        param = "last-event-id"
    else:
        number, param = exchange.query("after") or "0", "after"
    if not (number.isascii() and number.isdigit() and int(number[:11]) < _MAX_EVENT_NUMBER):
        raise ApiError("invalid_value", f"{param} must end in the number of an event", param=param)
    return int(number)


def _expired() -> ApiError:
    message = "this stream cannot be resumed any more; send the request again, with the same idempotency key"
    return ApiError("resume_expired", message)
