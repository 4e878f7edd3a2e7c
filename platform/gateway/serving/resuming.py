"""Going on with a stream that was cut, or ending one that nobody wants any more: found by its name."""

from uuid import UUID

from gateway.answers.served import FramingFor, Served
from gateway.answers.stream_id import StreamId
from gateway.errors import ApiError
from gateway.runtime import Gateway
from gateway.serving.attachment import attach, logs_away
from gateway.token_log.log import LogUnavailable
from tenants.contracts import KeyGrant


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


def expired() -> ApiError:
    message = "this stream cannot be resumed any more; send the request again, with the same idempotency key"
    return ApiError("resume_expired", message)
