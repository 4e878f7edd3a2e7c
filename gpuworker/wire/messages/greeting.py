"""Opening a connection: who is there, and whether they may stay."""

import msgspec

from gpuworker.wire.messages.base import Message, RowKey


class Capacity(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What a worker can hold. `max_tokens` is the servable bound: prompt + output of one request."""

    blocks: int
    block_size: int
    max_tokens: int
    max_rows: int


class RowFlow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Whose row it is, as its Run said."""

    tenant: str
    klass: str
    weight: float = 1.0


class Hello(Message, frozen=True):
    version: int
    role: str  # gateway | worker | controller; dispatcher: to another one, which term it holds
    id: str  # stable name, for people: gateway-0, worker-0
    incarnation: str  # new at each process start
    secret: str
    address: str = ""  # worker: where gateways connect for token frames
    model: str = ""  # worker: slug of the model it serves
    digest: str = ""  # worker: digest of the weights it loaded
    capacity: Capacity | None = None  # worker
    running: list[RowKey] = []  # worker: rows it still runs, after the dispatcher was lost
    choices: list[int] = []  # worker: rows that each of `running` takes; empty: one each
    serves: str = "both"  # worker: both | prefill | decode
    labels: list[str] = []  # worker: pools it belongs to, for the router: long_prompt
    kv_dtype: str = ""  # worker: numbers of its KV, see policy.prefix; "" when it keeps no prefixes
    flows: list[RowFlow] = []  # worker: whose each of `running` is; empty: not known
    term: int = 0  # of dispatchers: the highest this peer has seen
    epoch: int = 0  # worker: how often it was started on its folder; 0: not known
    to: str = ""  # gateway to a worker: the incarnation that it means; empty: whichever is there


class Welcome(Message, frozen=True):
    """Answer to Hello. A worker repeats its digest; the gateway checks it before it sends a byte."""

    version: int
    id: str
    incarnation: str
    digest: str = ""
    term: int = 0  # dispatcher: of its lease; 0: it is the only one


class Refusal(Message, frozen=True):
    """Code: bad_version, bad_secret, bad_role, bad_certificate, unknown_gateway, other_process, duplicate_id
    or standby."""

    code: str
    message: str
    active: str = ""  # of `standby`: address of the active dispatcher, if known
    term: int = 0  # and its term


class Heartbeat(Message, frozen=True):
    """Both directions, every HEARTBEAT_MS when nothing else was sent."""
