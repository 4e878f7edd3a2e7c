"""Every message that crosses a process boundary on the token path, version 1.

Four roles speak: gateway, dispatcher, worker, controller. The dispatcher listens for all of them; a worker
listens for gateways (token frames go to them directly) and for the controller (which collects usage records).
The first message on every connection is `Hello`; the listener answers `Welcome` or `Refusal` and closes.

A request is named on the wire by its `RowKey`: the gateway's incarnation and a number (`sid`) that this
incarnation never uses twice. `request_id` and `attempt` name it in usage rows and logs.
Token ids travel as packed little-endian uint32. Times are integer milliseconds; durations, never wall clocks.
"""

import uuid
from array import array
from typing import NamedTuple

import msgspec

PROTOCOL_VERSION = 1


class RowKey(NamedTuple):
    """One request as gateways, dispatcher and workers name it."""

    gateway: str  # incarnation of the gateway process, hex
    sid: int


class Message(msgspec.Struct, array_like=True, tag=True, gc=False, frozen=True, kw_only=True):
    """Base of all messages: msgpack array, the type's name first."""


def pack_ids(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()


def new_incarnation() -> str:
    return uuid.uuid4().hex


# -- opening a connection ---------------------------------------------------------------------------------


class Capacity(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What a worker can hold. `max_tokens` is the servable bound: prompt + output of one request."""

    blocks: int
    block_size: int
    max_tokens: int
    max_rows: int


class Hello(Message, frozen=True):
    version: int
    role: str  # gateway | worker | controller
    id: str  # stable name, for people: gateway-0, worker-0
    incarnation: str  # new at each process start
    secret: str
    address: str = ""  # worker: where gateways connect for token frames
    model: str = ""  # worker: slug of the model it serves
    digest: str = ""  # worker: digest of the weights it loaded
    capacity: Capacity | None = None  # worker
    running: list[RowKey] = []  # worker: rows it still runs, after the dispatcher was lost


class Welcome(Message, frozen=True):
    """Answer to Hello. A worker repeats its digest; the gateway checks it before it sends a byte."""

    version: int
    id: str
    incarnation: str
    digest: str = ""


class Refusal(Message, frozen=True):
    code: str  # bad_version | bad_secret | bad_role | duplicate_id
    message: str


class Heartbeat(Message, frozen=True):
    """Both directions, every HEARTBEAT_MS when nothing else was sent."""


# -- gateway to dispatcher --------------------------------------------------------------------------------


class Sampling(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    temperature: float = 1.0  # 0 means greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 means off
    seed: int = 0  # always chosen, by the gateway when the client gave none


class Submit(Message, frozen=True):
    sid: int
    request_id: str  # UUIDv7
    attempt: int
    tenant: str  # UUID of the tenant, from the API key
    model: str
    digest: str  # weights this request must run on
    klass: str  # interactive | batch
    prompt: bytes  # packed ids
    max_tokens: int
    sampling: Sampling
    stop: list[str] = []
    stop_ids: list[int] = []  # end-of-sequence ids; the text of these is never emitted
    ignore_eos: bool = False
    waited_ms: int = 0  # how long ago it arrived, when submitted again
    deadline_ms: int = 600_000  # time left


class Cancel(Message, frozen=True):
    """Gateway to dispatcher and, once placed, to the worker too. Unknown or ended rows: ignored."""

    sid: int
    reason: str = "cancelled"  # cancelled | deadline | error


# -- dispatcher to gateway --------------------------------------------------------------------------------


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


# -- dispatcher to worker ---------------------------------------------------------------------------------


class Run(Message, frozen=True):
    """A Submit, addressed: the worker refuses a digest it does not hold."""

    gateway: str
    submit: Submit


class CancelRow(Message, frozen=True):
    row: RowKey
    reason: str


class GatewayGone(Message, frozen=True):
    """The gateway stopped heart-beating: end all its rows with reason gateway_lost."""

    gateway: str


# -- worker to dispatcher ---------------------------------------------------------------------------------


class Report(Message, frozen=True):
    """State after a step that changed something, and at least every HEARTBEAT_MS."""

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


class Refused(Message, frozen=True):
    """The worker did not take the row. Nothing was computed, nothing is held."""

    row: RowKey
    code: str  # misrouted | capacity | unservable | draining
    message: str


# -- worker to gateway ------------------------------------------------------------------------------------


class End(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """Final word about a row; only these counts bill."""

    sid: int
    reason: str  # stop | length | cancelled | deadline | error | gateway_lost
    prompt_tokens: int  # 0 when no prefill was begun
    cached_tokens: int
    output_tokens: int
    queue_ms: int  # in the worker, before its first prefill step
    prefill_ms: int
    decode_ms: int
    preemptions: int
    message: str = ""


class Frame(Message, frozen=True):
    """What one step produced for one gateway. Columns of equal length, then the rows that ended.

    `starts[i]` is the number of output tokens of row i before this frame, so that a gap shows.
    A text may be empty while bytes of a character or a possible stop string are held back.
    """

    step: int
    sids: list[int]
    starts: list[int]
    counts: list[int]
    texts: list[str]
    ends: list[End] = []


# -- controller and worker: usage records -----------------------------------------------------------------


class UsageCheckpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Journal record of a worker: at the start, every 64 output tokens, and at the end of a row."""

    request_id: str
    attempt: int
    tenant: str
    gateway: str
    worker: str
    worker_incarnation: str
    model: str
    digest: str
    klass: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reason: str  # "" while running, else End.reason
    at_ms: int  # Unix time


class Collect(Message, frozen=True):
    """Controller to worker: send journal records after this position, at most `limit`.

    What lies before the position is acknowledged, if `journal` is the worker's own (see Collected).
    """

    journal: str
    after: int
    limit: int = 1000


class Collected(Message, frozen=True):
    """`position` is where the records end; the controller acknowledges with the next Collect.

    `journal` identifies the files: when it is not the one asked for, positions begin anew with these records.
    """

    journal: str
    records: list[UsageCheckpoint]
    position: int  # pass as the next `after`
    more: bool


# -- dispatcher to controller -----------------------------------------------------------------------------


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    incarnation: str
    model: str
    digest: str
    address: str
    state: str  # ready | suspect | draining
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


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    klass: str
    depth: int
    oldest_ms: int


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


HEARTBEAT_MS = 250
SUSPECT_MS = 750
DEAD_MS = 1500
FLEET_MS = 500
CHECKPOINT_TOKENS = 64

AnyMessage = (
    Hello
    | Welcome
    | Refusal
    | Heartbeat
    | Submit
    | Cancel
    | WorkerUp
    | WorkerDown
    | Placed
    | Ended
    | Run
    | CancelRow
    | GatewayGone
    | Report
    | Refused
    | Frame
    | Collect
    | Collected
    | FleetState
)
