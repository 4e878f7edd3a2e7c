"""Who may start a request now: live keys, open slots, a process that can do the work. A no holds nothing."""

from collections.abc import Mapping

from gateway.access.auth import authenticate, credentials
from gateway.errors import ApiError, LimitDetail, overloaded, stopping
from gateway.runtime import Gateway
from tenants.contracts import KeyGrant

_SLOT_RETRY_MS = 1_000


def key_authenticate(gateway: Gateway, headers: Mapping[bytes, bytes]) -> KeyGrant:
    """Raises ApiError."""
    return authenticate(credentials(headers), gateway.snapshot(), gateway.settings.key_pepper)


class Slot:
    """A context: one of the open requests of the process and of a key. Entering it raises ApiError."""

    __slots__ = ("_gateway", "_grant", "_is_for_work")

    def __init__(self, gateway: Gateway, grant: KeyGrant, *, is_for_work: bool) -> None:
        self._gateway = gateway
        self._grant = grant
        self._is_for_work = is_for_work

    def __enter__(self) -> None:
        gateway, grant = self._gateway, self._grant
        slots = gateway.slots
        if self._is_for_work:
            _process_judge(gateway, slots.open + slots.alone)
            _key_judge(gateway, grant, slots.running_of(grant.key_id))
            _work_judge(gateway)
        else:
            _process_judge(gateway, slots.open)
            _key_judge(gateway, grant, slots.open_of(grant.key_id))
        gateway.slots.take(grant.key_id)

    def __exit__(self, *_: object) -> None:
        self._gateway.slots.release(self._grant.key_id)


def slot(gateway: Gateway, grant: KeyGrant) -> Slot:
    """For a generation."""
    return Slot(gateway, grant, is_for_work=True)


def reading_slot(gateway: Gateway, grant: KeyGrant) -> Slot:
    """For what is there already."""
    return Slot(gateway, grant, is_for_work=False)


def _process_judge(gateway: Gateway, held: int) -> None:
    if gateway.is_stopping:
        raise stopping()
    allowed = gateway.limits.max_open_requests
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


def _key_judge(gateway: Gateway, grant: KeyGrant, held: int) -> None:
    allowed = gateway.limits.max_open_requests_per_key
    if grant.max_open_requests is not None:
        allowed = grant.max_open_requests
    if held >= allowed:
        raise ApiError(
            "concurrent_requests",
            f"this API key has {held} requests open, and may have {allowed}",
            retry_after_ms=_SLOT_RETRY_MS,
            limit=LimitDetail(
                name="open_requests", scope="key", subject=grant.public_id, held=held, limit=allowed
            ),
        )


def _work_judge(gateway: Gateway) -> None:
    if refusal := gateway.spool.refusal:
        limit = LimitDetail(name="spool", scope="gateway", subject=gateway.settings.gateway_id)
        raise overloaded(refusal, 10_000, limit=limit)
    if not gateway.upstream.is_served:
        raise gateway.upstream.dispatcher_away()
