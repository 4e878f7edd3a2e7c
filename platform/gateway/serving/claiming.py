"""A claim on an idempotency key is never forgotten: whoever does not use it lets it go, whatever happens."""

import asyncio
import logging
from functools import partial
from uuid import UUID

from billing.idempotency import Claim, Reused, Running, Stored, StoreUnavailable
from gateway.errors import LimitDetail, overloaded
from gateway.runtime import Gateway
from gateway.token_log.log import LogUnavailable
from tenants.contracts import KeyGrant

_RETRY_S = 2.0
_TRIES = 150

logger = logging.getLogger(__name__)

Found = Claim | Running | Stored | Reused


async def claim(gateway: Gateway, grant: KeyGrant, key: str, fingerprint: bytes, request_id: UUID) -> Found:
    """Raises ApiError when the records cannot be reached; then nothing may run.

    A lease lapses if its owner dies, but also if it only cannot reach PostgreSQL: a request is not taken
    from a gateway that is heard, and keeps a log of it, in Valkey.
    """
    tenant_id = grant.tenant_id
    found = await _claim(gateway, tenant_id, key, fingerprint, request_id, may_take_over=False)
    if isinstance(found, Running) and found.is_lapsed and not await _is_running(gateway, grant, found):
        found = await _claim(gateway, tenant_id, key, fingerprint, request_id, may_take_over=True)
    return found


async def _is_running(gateway: Gateway, grant: KeyGrant, found: Running) -> bool:
    log = gateway.token_log
    if not await log.is_alive(found.owner):
        return False
    try:
        opened = await log.find(grant.tenant_id, found.request_id, grant.data_key)
    except LogUnavailable:
        return False
    return opened is not None and (opened.owner, opened.attempt) == (found.owner, found.attempt)


async def _claim(
    gateway: Gateway,
    tenant_id: UUID,
    key: str,
    fingerprint: bytes,
    request_id: UUID,
    *,
    may_take_over: bool,
) -> Found:
    claiming = gateway.spawn(
        gateway.idempotency.claim(tenant_id, key, fingerprint, request_id, may_take_over=may_take_over)
    )
    try:
        return await asyncio.shield(claiming)
    except StoreUnavailable as error:
        message = "requests with an idempotency key cannot be served now: their records cannot be reached"
        limit = LimitDetail(name="idempotency_records", scope="gateway", subject=gateway.settings.gateway_id)
        raise overloaded(message, 5_000, limit=limit) from error
    except asyncio.CancelledError:
        claiming.add_done_callback(partial(_unwanted, gateway, tenant_id))
        raise


async def let_go(gateway: Gateway, tenant_id: UUID, claim: Claim) -> None:
    """Nothing ran: the next request with the key runs. What takes longer goes on in the background."""
    await asyncio.wait({gateway.spawn(_fail(gateway, tenant_id, claim))}, timeout=_RETRY_S)


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
