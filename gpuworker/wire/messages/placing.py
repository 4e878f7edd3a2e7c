"""What the dispatcher decides, and what workers tell it for that."""

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


class Placed(Message, frozen=True):
    sid: int
    worker: str  # incarnation
    queue_ms: int


class Ended(Message, frozen=True):
    """Ended without a worker: cancelled, deadline_exceeded, queue_full, no_replica, refused."""

    sid: int
    code: str
    message: str
    retry_after_ms: int = 0


class Run(Message, frozen=True):
    """A Submit, addressed: the worker refuses a digest it does not hold."""

    gateway: str
    submit: Submit
    prefill_from: str = ""  # address of a worker that shall compute the prompt; a hint, any failure is local


class CancelRow(Message, frozen=True):
    row: RowKey
    reason: str


class GatewayGone(Message, frozen=True):
    """The gateway stopped heart-beating: end all its rows with reason gateway_lost."""

    gateway: str


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


class Refused(Message, frozen=True):
    """The worker did not take the row. Nothing was computed, nothing is held."""

    row: RowKey
    code: str  # misrouted | capacity | draining | unservable | invalid_request | invalid_grammar
    message: str
