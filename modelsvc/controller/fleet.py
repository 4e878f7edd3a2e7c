"""Subscription to the dispatcher's fleet state, across any number of lost dispatchers."""

import logging
from collections.abc import Callable

from gpuworker.wire.messages import FleetState
from modelsvc.controller.backoff import Backoff
from modelsvc.controller.peer import PeerLost, peer_open

logger = logging.getLogger(__name__)


async def fleet_follow(
    address: str, *, name: str, incarnation: str, secret: str, on_state: Callable[[FleetState], None]
) -> None:
    """Calls `on_state` with each state as it arrives; runs until cancelled."""
    backoff = Backoff(f"dispatcher {address}", logger)
    while True:
        try:
            async with peer_open(address, name=name, incarnation=incarnation, secret=secret) as dispatcher:
                while True:
                    message = await dispatcher.receive()
                    if isinstance(message, FleetState):
                        backoff.succeeded()
                        on_state(message)
        except PeerLost as error:
            await backoff.failed(error)
