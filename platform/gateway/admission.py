"""Who may start a request now: live keys, open slots, a process that can do the work. A no holds nothing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.auth import authenticate, credentials
from gateway.errors import ApiError, LimitDetail, overloaded, stopping
from gateway.runtime import Gateway
from tenants.contracts import KeyGrant

_SLOT_RETRY_MS = 1_000


def key_authenticate(gateway: Gateway, headers: Mapping[bytes, bytes]) -> KeyGrant:
    """Raises ApiError."""
    return authenticate(credentials(headers), gateway.snapshot(), gateway.settings.key_pepper)


@contextmanager
def slot(gateway: Gateway, grant: KeyGrant) -> Iterator[None]:
    """For a generation. Raises ApiError when none may start, or the key has as much open as it may."""
    with reading_slot(gateway, grant):
        _work_judge(gateway)
        yield


@contextmanager
def reading_slot(gateway: Gateway, grant: KeyGrant) -> Iterator[None]:
    """For what is there already. Raises ApiError when the process or the key has as much open as it may."""
    _process_judge(gateway)
    allowed = gateway.limits.max_open_requests_per_key
    if grant.max_open_requests is not None:
        allowed = grant.max_open_requests
    held = gateway.open_by_key[grant.key_id]
    if held >= allowed:
        raise ApiError(
            "concurrent_requests",
            f"this API key has {held} requests open, and may have {allowed}",
            retry_after_ms=_SLOT_RETRY_MS,
            limit=LimitDetail(
                name="open_requests", scope="key", subject=grant.public_id, held=held, limit=allowed
            ),
        )
    gateway.open_slots += 1
    gateway.open_by_key[grant.key_id] += 1
    try:
        yield
    finally:
        gateway.open_slots -= 1
        gateway.open_by_key[grant.key_id] -= 1
        if not gateway.open_by_key[grant.key_id]:
            del gateway.open_by_key[grant.key_id]


def _process_judge(gateway: Gateway) -> None:
    if gateway.is_stopping:
        raise stopping()
    held, allowed = gateway.open_slots, gateway.limits.max_open_requests
    if held >= allowed:
        raise overloaded(
            "this gateway serves as many requests as it can",
            limit=LimitDetail(
                name="open_requests",
                scope="gateway",
                subject=gateway.settings.gateway_id,
                held=held,
                limit=allowed,
            ),
        )


def _work_judge(gateway: Gateway) -> None:
    if refusal := gateway.spool.refusal:
        limit = LimitDetail(name="spool", scope="gateway", subject=gateway.settings.gateway_id)
        raise overloaded(refusal, 10_000, limit=limit)
    if not gateway.upstream.dispatcher.is_ready:
        raise gateway.upstream.dispatcher_away()
