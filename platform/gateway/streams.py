"""`/v1/streams/{request_id}`: go on with a stream that was cut, or end one that nobody wants any more."""

from uuid import UUID

from gateway.admission import key_authenticate, reading_slot
from gateway.attachment import attach, logs_away
from gateway.auth import SCOPE_COMPLETIONS, scope_require
from gateway.delivery import Delivery
from gateway.errors import ApiError
from gateway.http import Exchange
from gateway.runtime import Gateway
from gateway.served import FramingFor, Served, sse_framing
from gateway.stream_id import StreamId
from gateway.token_log.log import LogUnavailable
from gateway.watching import Watch
from tenants.contracts import KeyGrant

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


async def resume(
    gateway: Gateway, grant: KeyGrant, stream_id: StreamId, after: int, framing_for: FramingFor
) -> Served:
    """Raises ApiError when there is nothing to go on with."""
    # Nothing was seen yet, and the attempt is not named: whichever there is.
    wanted = stream_id if after or stream_id.attempt > 1 else stream_id.request_id
    await gateway.token_log.listen(grant.tenant_id, stream_id.request_id)
    served = await attach(gateway, grant, wanted, framing_for, is_numbered=True, after=after)
    if served is None:
        raise expired()
    return served


async def stream_cancel(gateway: Gateway, exchange: Exchange) -> None:
    """Nobody wants it any more: it ends now, here or elsewhere. Raises ApiError when there is none."""
    grant = key_authenticate(gateway, exchange.headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    request_id = StreamId.parse(exchange.path.removeprefix(PREFIX)).request_id
    await stream_end(gateway, grant, request_id)
    await exchange.respond(202, b'{"cancelled":true}')


async def stream_end(gateway: Gateway, grant: KeyGrant, request_id: UUID) -> None:
    """Here or elsewhere. Raises ApiError when there is none."""
    job = gateway.job_find(grant.tenant_id, request_id)
    if job is not None:
        job.cancel("cancelled")
    else:
        await cancel_elsewhere(gateway, grant, request_id)


async def cancel_elsewhere(gateway: Gateway, grant: KeyGrant, request_id: UUID) -> None:
    """Its newest attempt, which another gateway runs. Raises ApiError."""
    try:
        opened = await gateway.token_log.find(grant.tenant_id, request_id, grant.data_key)
        if opened is None:
            raise ApiError("request_not_found", f"there is no stream {request_id}")
        await gateway.token_log.cancel(grant.tenant_id, request_id, opened.attempt)
    except LogUnavailable as error:
        raise logs_away(gateway) from error


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


def expired() -> ApiError:
    message = "this stream cannot be resumed any more; send the request again, with the same idempotency key"
    return ApiError("resume_expired", message)
