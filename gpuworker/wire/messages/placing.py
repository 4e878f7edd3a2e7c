"""What the dispatcher decides, and what workers tell it for that."""

import msgspec

from gpuworker.wire.messages.base import Message, RowKey
from gpuworker.wire.messages.request import Submit


class WorkerUp(Message, frozen=True):
    id: str
    incarnation: str
    address: str
    model: str
    digest: str
    max_tokens: int


class WorkerDown(Message, frozen=True):
    """After this, rows placed on that incarnation produce nothing more."""

    id: str
    incarnation: str
    cause: str
    crashed: bool = False  # its process ended without having said that it stops


class Placed(Message, frozen=True):
    sid: int
    worker: str  # incarnation
    queue_ms: int


class Ended(Message, frozen=True):
    """Ended without a worker: cancelled, deadline_exceeded, queue_full, deadline_unmeetable, shed, no_replica
    or refused."""

    sid: int
    code: str
    message: str
    retry_after_ms: int = 0
    reason: str = ""  # of `refused`: as Refused.code
    name: str = ""  # of the limit that was met, how much of it is used, and what it is
    used: int = 0
    limit: int = 0


class Run(Message, frozen=True):
    """A Submit, addressed: the worker refuses a digest it does not hold."""

    gateway: str
    submit: Submit
    prefill_from: str = ""  # address of a worker that shall compute the prompt; a hint, any failure is local
    worker: str = ""  # incarnation that is meant: another process at the same address refuses


class CancelRow(Message, frozen=True):
    row: RowKey
    reason: str


class GatewayGone(Message, frozen=True):
    """The gateway stopped heart-beating: end all its rows with reason gateway_lost."""

    gateway: str


class Shares(Message, frozen=True):
    """Dispatcher to worker: these flows are over their share in the whole fleet, so they yield in this worker
    too. All that are; said on change and every second, and no longer true after SHARES_MS without another."""

    digest: str
    over: list[tuple[str, str]]  # tenant, class


class Pressure(Message, frozen=True):
    """Dispatcher to gateways, on change and every second: how far a model's degradation goes."""

    digest: str
    level: int  # 0: none, to 5
    wait_ms: int  # that a new interactive request is expected to wait


class FlowWork(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Machine time of one tenant's rows of one class."""

    tenant: str
    klass: str
    total_us: int  # since this worker's start; 0: it was forgotten, and begins at 0 should it come again


class Report(Message, frozen=True):
    """State after a step that changed something, and at least every HEARTBEAT_MS.

    It takes into account the first `runs` Runs of this connection.
    """

    seq: int
    running: int  # rows holding KV
    waiting: int  # rows accepted, not yet holding KV
    pending_prefill_tokens: int
    free_blocks: int
    step: int
    step_ms: float
    batch_rows: int  # rows in the last step
    tokens_per_s: float  # output tokens, over the last seconds
    preemptions: int  # since start
    prefilled: list[RowKey] = []  # rows whose prompt is now computed
    ended: list[RowKey] = []
    cached: list[bytes] = []  # prefix blocks that came into the cache, see policy.prefix
    evicted: list[bytes] = []
    cache_reset: bool = False  # forget what was said before: `cached` is everything held
    runs: int = 0
    swaps: int = 0  # since start: rows whose KV went to host memory and came back
    paused: int = 0  # rows that keep their KV and get no tokens
    preemptions_per_min: float = 0.0  # over the last minute
    draining: bool = False  # it takes nothing more, neither rows nor prompts of other workers
    cost: list[float] = []  # milliseconds, in the order of policy.step_cost.StepCost; empty: not measured
    row_limit: int = 0  # rows that decode within the target latency; 0: unknown
    work: list[FlowWork] = []  # flows that changed; with `cache_reset` all: others begin at 0
    full: bool = False  # it takes nothing for now, e.g. what it stands for does not answer
    hung: bool = False  # its step lasts far longer than it can: nothing more comes of its rows
    usage_mismatches: int = 0  # since start: requests whose upstream counted otherwise than the worker did
    cut: list[RowKey] = []  # of `ended`, those that were ended before their output was
    warming: bool = False  # it takes nothing yet


class Refused(Message, frozen=True):
    """The worker did not take the row. Nothing was computed, nothing is held."""

    row: RowKey
    code: str  # misrouted | capacity | draining | too_long | unservable | invalid_grammar
    message: str
    digest: str = ""  # what the worker holds
