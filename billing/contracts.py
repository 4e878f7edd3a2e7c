"""The usage record the gateway writes at the end of every request and the ledger prices. No Django here."""

from dataclasses import dataclass

import msgspec

OUTCOMES = (
    "completed",  # stop or length
    "cancelled",  # the client left, or read too slowly
    "deadline",
    "replica_lost",
    "gateway_lost",  # written by the reaper from the worker's checkpoints
    "filtered",
    "error",
)
LOST_CAUSES = (
    "crashed",  # the process ended without having said that it stops
    "disconnected",  # its token connection ended
    "unreachable",  # no token connection came about
    "silent",  # the dispatcher heard nothing more of it, or it hung, or another one took its place
    "shut_down",
    "upstream_failed",  # the server that it stands for
    "misplaced",  # it held other weights
)


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one request, as counted by the worker. Key: (request_id, attempt).

    `prompt_tokens` is 0 when no prefill was begun: such a request costs nothing.
    """

    request_id: str  # UUIDv7
    attempt: int
    tenant_id: str  # UUID
    key_id: str | None  # UUID; None when the reaper does not know it
    model: str
    digest: str
    klass: str
    worker: str
    worker_incarnation: str
    gateway: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    outcome: str
    occurred_at_ms: int  # Unix time
    replica_attempts: int = 1  # replicas that had it, one after the other: the others were lost with it
    lost_cause: str = ""  # of the latest loss, one of LOST_CAUSES; "" where none was, or nobody knows
    recomputed_tokens: int = 0  # prompt and output that was computed again after a loss: never billed


@dataclass(frozen=True, slots=True)
class Price:
    """Integer micro-dollars per million tokens, effective from a moment until the next version."""

    version: int
    model: str
    prompt_micro_usd_per_mtok: int
    cached_micro_usd_per_mtok: int
    output_micro_usd_per_mtok: int
