"""Usage records on their way from a worker's journal to the controller."""

import msgspec

from gpuworker.wire.messages.base import Message


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
    moves: int = 0  # as in its Submit: replicas that were lost with it before


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
