"""A request that waits for a replica, and the answers it can get. No decisions."""

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from policy.flow import Flow
from policy.prefix import Chain


@dataclass(slots=True, eq=False)
class Waiting:
    """One request; the caller keeps its own data under `key`.

    `deadline_ms` is when its first token has to be there; `whole_by_ms` when its last one has, where the
    client is told nothing before and gives up then. Fields below the line belong to the queue; it also
    changes `flow` and `weight` of batch that becomes urgent, and the request must then run as that flow.
    """

    key: Hashable
    flow: Flow
    weight: float
    arrived_ms: float
    deadline_ms: float
    prompt_tokens: int
    cached_tokens: int  # of the prompt, expected to be found computed
    expected_tokens: int  # output of all choices, learned
    choices: int = 1
    whole_by_ms: float = inf
    is_retry: bool | None = None  # it was refused before and comes again; None: the client does not say
    chains: tuple[Chain, ...] = ()  # names of the prompt's prefixes, one chain for each kind of KV
    was_lost: bool = False  # the replica that it ran on
    avoided: frozenset[str] = frozenset()  # replicas that said they cannot serve it
    # -- of the queue
    comes_first: bool = False  # of its flow: it was lost
    sequence: int = 0  # breaks ties; kept when the request returns to its place
    work_us: int = 0  # machine time it is expected to take
    service_ms: float = 0.0  # from its start to its last token, as expected when it was admitted
    latest_ms: float = 0.0  # when it has to start
    promised_ms: float = 0.0  # how long it was expected to wait

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that have to be computed."""
        return max(1, self.prompt_tokens - self.cached_tokens)


class Placement(NamedTuple):
    waiting: Waiting
    replica: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not wait: nothing has changed.

    `code`: queue_full | deadline_unmeetable | shed | unservable. A place is booked in `retry_after_ms`; 0:
    there is none within what may be told, or it never fits.
    `name` is the limit, `used` and `limit` its figures, in milliseconds, requests, bytes or tokens.
    """

    code: str
    message: str
    retry_after_ms: int
    used: int
    limit: int
    name: str


@dataclass(frozen=True, slots=True)
class LevelChange:
    """The degradation level of a model version changed: an audit event and a metric."""

    at_ms: float
    before: int
    after: int
    pressure: float  # expected wait as a part of the deadline
    wait_ms: float


class FlowView(NamedTuple):
    """A flow as people see it."""

    flow: Flow
    weight: float
    queued: int  # requests
    running: int  # rows
    queued_us: int  # machine time that the queued ones are expected to take
    work_ms_per_s: float  # machine time it was given, of late
    is_over: bool
