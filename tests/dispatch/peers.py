"""In-memory peers for the dispatcher's core: they record what they are sent."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Capacity,
    FlowWork,
    Hello,
    Report,
    RowFlow,
    RowKey,
    Sampling,
    Submit,
    pack_ids,
)

T = TypeVar("T")
EVERY_RUN = 1 << 30  # the worker has seen whatever was sent to it


@dataclass
class Inbox:
    messages: list[AnyMessage] = field(default_factory=list)
    is_open: bool = True

    def send(self, message: AnyMessage) -> bool:
        if self.is_open:
            self.messages.append(message)
        return self.is_open

    def abort(self, cause: str) -> None:
        self.is_open = False

    def of(self, kind: type[T]) -> list[T]:
        return [m for m in self.messages if isinstance(m, kind)]


def hello(
    role: str,
    name: str,
    incarnation: str,
    *,
    digest: str = "d1",
    blocks: int = 64,
    max_rows: int = 32,
    max_tokens: int = 1_000,
    running: list[RowKey] | None = None,
    choices: list[int] | None = None,
    serves: str = "both",
    labels: list[str] | None = None,
    kv_dtype: str = "float32",
    flows: list[RowFlow] | None = None,
) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        role=role,
        id=name,
        incarnation=incarnation,
        secret="s",
        address=f"unix:/{name}" if role == "worker" else "",
        model="demo" if role == "worker" else "",
        digest=digest if role == "worker" else "",
        capacity=Capacity(blocks=blocks, block_size=16, max_tokens=max_tokens, max_rows=max_rows)
        if role == "worker"
        else None,
        running=running or [],
        choices=choices or [],
        serves=serves,
        labels=labels or [],
        kv_dtype=kv_dtype,
        flows=flows or [],
    )


def submit(sid: int, *, prompt: int = 10, **changed: Any) -> Submit:
    """`prompt` is its number of tokens, or give `prompt_ids`."""
    fields: dict[str, Any] = {
        "request_id": f"r{sid}",
        "attempt": 1,
        "tenant": "t",
        "model": "demo",
        "digest": "d1",
        "klass": "interactive",
        "prompt": changed.pop("prompt_ids", pack_ids([1] * prompt)),
        "max_tokens": 16,
        "sampling": Sampling(),
    }
    return Submit(sid=sid, **(fields | changed))


def report(
    seq: int,
    *,
    free_blocks: int = 64,
    pending: int = 0,
    prefilled: list[RowKey] | None = None,
    ended: list[RowKey] | None = None,
    runs: int = EVERY_RUN,
    cached: list[bytes] | None = None,
    evicted: list[bytes] | None = None,
    cache_reset: bool = False,
    draining: bool = False,
    cost: list[float] | None = None,
    row_limit: int = 0,
    work: list[FlowWork] | None = None,
    cut: list[RowKey] | None = None,
) -> Report:
    return Report(
        seq=seq,
        running=0,
        waiting=0,
        pending_prefill_tokens=pending,
        free_blocks=free_blocks,
        step=seq,
        step_ms=1.0,
        batch_rows=0,
        tokens_per_s=0.0,
        preemptions=0,
        prefilled=prefilled or [],
        ended=ended or [],
        runs=runs,
        cached=cached or [],
        evicted=evicted or [],
        cache_reset=cache_reset,
        draining=draining,
        cost=cost or [],
        row_limit=row_limit,
        work=work or [],
        cut=cut or [],
    )
