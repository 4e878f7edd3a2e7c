"""Subscription to the dispatcher's fleet state, across any number of lost dispatchers."""

import logging
from collections.abc import Callable

from gpuworker.wire.dispatchers import Dispatchers
from gpuworker.wire.messages import FleetState
from gpuworker.wire.tls import WireTls
from modelsvc.controller.backoff import Backoff
from modelsvc.controller.peer import PeerLost, peer_open

logger = logging.getLogger(__name__)


async def fleet_follow(
    address: str,
    *,
    name: str,
    incarnation: str,
    secret: str,
    tls: WireTls | None = None,
    on_state: Callable[[FleetState], None],
) -> None:
    """Calls `on_state` with each state as it arrives; runs until cancelled. `address` may be several: one is
    active."""
    backoff, dispatchers = Backoff(f"dispatcher {address}", logger), Dispatchers(address)
    greeting = {"name": name, "incarnation": incarnation, "secret": secret}
    while True:
        try:
            async with peer_open(dispatchers, **greeting, tls=tls) as dispatcher:
                while True:
                    message = await dispatcher.receive()
                    if isinstance(message, FleetState):
                        backoff.succeeded()
                        on_state(message)
        except PeerLost as error:
            dispatchers.failed()
            await backoff.failed(error, dispatchers.pause_s)
