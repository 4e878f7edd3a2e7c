"""The fleet state as the controller publishes it and as pages read it. No Django here.

The controller stores the latest state as JSON under FLEET_KEY, keeps the headline figures of the last minutes
in the list FLEET_HISTORY_KEY (newest first), and sends {"type": "fleet.state", "state": …} to the Channels
group FLEET_GROUP.
"""

import msgspec

from gpuworker.wire.messages import FlowView, GatewayView, QueueView, WorkerView

FLEET_GROUP = "fleet"
FLEET_KEY = "sluice:fleet"
FLEET_KEY_TTL_S = 5  # a page that finds no key knows that nobody watches the fleet
FLEET_HISTORY_KEY = "sluice:fleet:history"
HISTORY_POINTS = 600  # five minutes at one point each 500 ms
HISTORY_TTL_S = 300
CLOCK_SET_BACK_MS = 30_000  # a state this much older than the newest point begins the history anew


class DeploymentView(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas of a version are to run, and do."""

    model: str
    digest: str
    role: str  # both | prefill | decode
    wanted: int
    ready: int
    others: int  # warming, suspect, draining


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One FleetState and what is deployed, as a JSON object: field names, not positions, for browsers."""

    seq: int
    at_ms: int  # Unix time
    workers: list[WorkerView]
    queues: list[QueueView]
    gateways: list[GatewayView]
    submitted: int  # since the dispatcher started
    refused: int
    tokens_per_s: float
    flows: list[FlowView] = []
    deployments: list[DeploymentView] = []


class FleetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The charts' figures at one moment."""

    at_ms: int
    tokens_per_s: float
    running: int
    queued: dict[str, int]  # by class
