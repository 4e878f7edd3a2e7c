"""The whole fleet as the dispatcher sees it, for the controller."""

import msgspec

from gpuworker.wire.messages.base import Message


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    incarnation: str
    model: str
    digest: str
    address: str
    state: str  # warming | ready | suspect | draining
    running: int
    waiting: int
    pending_prefill_tokens: int
    blocks: int
    free_blocks: int
    block_size: int
    batch_rows: int
    step: int
    step_ms: float
    tokens_per_s: float
    preemptions: int
    age_ms: int
    serves: str = "both"  # both | prefill | decode
    labels: list[str] = []
    swaps: int = 0
    paused: int = 0
    preemptions_per_min: float = 0.0
    full: bool = False  # it takes nothing for now
    usage_mismatches: int = 0
    epoch: int = 0  # how often it was started; 0: not known


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    klass: str
    depth: int
    oldest_ms: int
    tenants: int = 0  # that wait
    level: int = 0  # of degradation, as in Pressure
    wait_ms: int = 0  # expected of a new request


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's requests of one class and model."""

    model: str
    tenant: str
    klass: str
    queued: int
    running: int
    work_ms_per_s: float  # machine time, over the last seconds, in the whole fleet


class GatewayView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    incarnation: str
    streams: int


class FleetState(Message, frozen=True):
    """The whole fleet as the dispatcher sees it; sent to controllers every FLEET_MS."""

    seq: int
    at_ms: int  # Unix time
    workers: list[WorkerView]
    queues: list[QueueView]
    gateways: list[GatewayView]
    submitted: int  # since start
    refused: int
    tokens_per_s: float
    flows: list[FlowView] = []  # the FLEET_FLOWS with most queued work
