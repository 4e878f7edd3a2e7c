"""A claim on an idempotency key is never forgotten: whoever does not use it lets it go, whatever happens."""

import asyncio
import logging
from functools import partial
from uuid import UUID

from billing.idempotency import Claim, Reused, Running, Stored, StoreUnavailable
from gateway.errors import overloaded
from gateway.runtime import Gateway

_RETRY_S = 2.0
_TRIES = 150

logger = logging.getLogger(__name__)

Found = Claim | Running | Stored | Reused


async def claim(gateway: Gateway, tenant_id: UUID, key: str, fingerprint: bytes, request_id: UUID) -> Found:
    """Raises ApiError when the records cannot be reached; then nothing may run."""
    claiming = gateway.spawn(gateway.idempotency.claim(tenant_id, key, fingerprint, request_id))
    try:
        return await asyncio.shield(claiming)
    except StoreUnavailable as error:
        message = "requests with an idempotency key cannot be served now: their records cannot be reached"
        raise overloaded(message, 5_000) from error
    except asyncio.CancelledError:
        claiming.add_done_callback(partial(_unwanted, gateway, tenant_id))
        raise


async def let_go(gateway: Gateway, tenant_id: UUID, claim: Claim) -> None:
    """Nothing ran: the next request with the key runs. Goes on when the caller is cancelled."""
    await asyncio.shield(gateway.spawn(_fail(gateway, tenant_id, claim)))


def _unwanted(gateway: Gateway, tenant_id: UUID, claiming: "asyncio.Task[Found]") -> None:
    if claiming.cancelled() or claiming.exception() is not None:
        return  # what was committed nevertheless is not renewed: its lease ends
    if isinstance(found := claiming.result(), Claim):
        gateway.spawn(_fail(gateway, tenant_id, found))


async def _fail(gateway: Gateway, tenant_id: UUID, claim: Claim) -> None:
    for _ in range(_TRIES):
        try:
            await gateway.idempotency.fail(tenant_id, claim)
            return
        except StoreUnavailable as error:
            logger.warning("request %s: its key is let go later: %s", claim.request_id, error)
        await asyncio.sleep(_RETRY_S)
    logger.error("request %s: its key was not let go", claim.request_id)
