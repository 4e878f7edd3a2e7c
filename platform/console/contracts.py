"""The fleet state as the controller publishes it and as the console shows it. No Django here.

The controller stores the latest state under FLEET_KEY, keeps the last minutes of headline figures in the list
FLEET_HISTORY_KEY (newest first), and sends {"type": "fleet.state", "state": …} to the group FLEET_GROUP.
"""

import msgspec

from gpuworker.wire.messages import GatewayView, QueueView, WorkerView

FLEET_KEY = "sluice:fleet"
FLEET_HISTORY_KEY = "sluice:fleet:history"
FLEET_GROUP = "fleet"
HISTORY_POINTS = 600  # five minutes at one point each 500 ms
STALE_AFTER_MS = 3_000  # six missed publications


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One FleetState, as a JSON object: field names, not positions, because browsers read it."""

    seq: int
    at_ms: int  # Unix time
    workers: list[WorkerView]
    queues: list[QueueView]
    gateways: list[GatewayView]
    submitted: int  # since the dispatcher started
    refused: int
    tokens_per_s: float


class FleetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The charts' figures at one moment."""

    at_ms: int
    tokens_per_s: float
    running: int
    queued: dict[str, int]  # by class


class FleetUnavailable(Exception):
    """The state store could not be read; the message says what an operator can do."""
