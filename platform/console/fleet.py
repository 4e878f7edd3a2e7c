"""A fleet snapshot as the first paint of "Fleet now" shows it; `fleet_figures.js` is its twin. No Django."""

import re
from dataclasses import dataclass

from console.contracts import STALE_AFTER_MS
from console.formats import count_text, duration_text, percent_text, rate_text
from gpuworker.wire.messages import QueueView, WorkerView
from modelsvc.fleet_contracts import FleetSnapshot

EMPTY = FleetSnapshot(
    seq=0, at_ms=0, workers=[], queues=[], gateways=[], submitted=0, refused=0, tokens_per_s=0.0
)
CHART_SERIES = {
    "rate": ["Tokens per second"],
    "running": ["Sequences"],
    "queued": ["Interactive", "Batch"],
}
NOTHING = "\N{EN DASH}"
TONES = {"warming": "info", "ready": "ok", "suspect": "warn", "draining": "info"}


@dataclass(frozen=True, slots=True)
class Tile:
    """One headline figure."""

    key: str
    label: str
    value: str
    unit: str
    note: str
    icon: str
    share: float | None = None  # of a whole, drawn as a meter


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    key: str
    id: str
    state: str
    tone: str
    model: str
    digest: str
    digest_full: str
    rows: str
    running: str
    waiting: str
    pending: str
    kv_share: float
    kv: str
    kv_blocks: str
    step: str
    rate: str
    preemptions: str
    age: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    key: str
    model: str
    klass: str
    depth: str
    oldest: str


@dataclass(frozen=True, slots=True)
class GatewayRow:
    key: str
    id: str
    incarnation: str
    streams: str


@dataclass(frozen=True, slots=True)
class FleetPage:
    tiles: list[Tile]
    replicas: list[ReplicaRow]
    queues: list[QueueRow]
    gateways: list[GatewayRow]
    submitted: str
    refused: str
    at_ms: int
    age: str
    stale: bool


def fleet_page(snapshot: FleetSnapshot, now_ms: int) -> FleetPage:
    age_ms = max(0, now_ms - snapshot.at_ms)
    return FleetPage(
        tiles=_tiles(snapshot),
        replicas=[_replica(worker) for worker in sorted(snapshot.workers, key=lambda w: natural_key(w.id))],
        queues=[
            QueueRow(
                key=str(number),  # one model may queue for two digests
                model=queue.model,
                klass=queue.klass,
                depth=count_text(queue.depth),
                oldest=duration_text(queue.oldest_ms) if queue.depth else NOTHING,
            )
            for number, queue in enumerate(sorted(snapshot.queues, key=_queue_order))
        ],
        gateways=[
            GatewayRow(
                key=gateway.incarnation,
                id=gateway.id,
                incarnation=gateway.incarnation[:8],
                streams=count_text(gateway.streams),
            )
            for gateway in sorted(snapshot.gateways, key=lambda g: natural_key(g.id))
        ],
        submitted=count_text(snapshot.submitted),
        refused=count_text(snapshot.refused),
        at_ms=snapshot.at_ms,
        age=duration_text(age_ms),
        stale=age_ms > STALE_AFTER_MS,
    )


def _queue_order(queue: QueueView) -> tuple[str, bool, str]:
    return queue.model, queue.klass != "interactive", queue.klass


def natural_key(name: str) -> list[tuple[int, str]]:
    """worker-2 before worker-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", name)]


def _tiles(snapshot: FleetSnapshot) -> list[Tile]:
    workers = snapshot.workers
    ready = sum(worker.state == "ready" for worker in workers)
    running = sum(worker.running for worker in workers)
    waiting = sum(worker.waiting for worker in workers)
    queued = sum(queue.depth for queue in snapshot.queues)
    oldest_ms = max((queue.oldest_ms for queue in snapshot.queues if queue.depth), default=0)
    blocks = sum(worker.blocks for worker in workers)
    used = blocks - sum(worker.free_blocks for worker in workers)
    return [
        Tile(
            "ready",
            "Replicas ready",
            count_text(ready),
            f"of {count_text(len(workers))}",
            _absent(workers),
            "server",
        ),
        Tile(
            "running",
            "Running sequences",
            count_text(running),
            "",
            f"{count_text(waiting)} waiting on replicas" if waiting else "none waiting",
            "rows",
        ),
        Tile(
            "queued",
            "Queued requests",
            count_text(queued),
            "",
            f"oldest {duration_text(oldest_ms)}" if queued else "nothing waits",
            "queue",
        ),
        Tile(
            "rate",
            "Output tokens",
            rate_text(snapshot.tokens_per_s),
            "per second",
            _per_replica(snapshot),
            "bolt",
        ),
        Tile(
            "kv",
            "KV cache in use",
            percent_text(used / blocks) if blocks else NOTHING,
            "",
            f"{count_text(used)} of {count_text(blocks)} blocks" if blocks else "no replica",
            "stack",
            share=used / blocks if blocks else 0.0,
        ),
    ]


def _absent(workers: list[WorkerView]) -> str:
    """What the replicas that are not ready are doing."""
    if not workers:
        return "none connected"
    others = [
        f"{number} {state}"
        for state in ("warming", "suspect", "draining")
        if (number := sum(worker.state == state for worker in workers))
    ]
    return ", ".join(others) or "all answering"


def _per_replica(snapshot: FleetSnapshot) -> str:
    if not snapshot.workers:
        return "no replica"
    return f"{rate_text(snapshot.tokens_per_s / len(snapshot.workers))} per replica"


def _replica(worker: WorkerView) -> ReplicaRow:
    used = worker.blocks - worker.free_blocks
    share = used / worker.blocks if worker.blocks else 0.0
    return ReplicaRow(
        key=worker.incarnation,
        id=worker.id,
        state=worker.state,
        tone=TONES.get(worker.state, "neutral"),
        model=worker.model,
        digest=worker.digest[:8],
        digest_full=worker.digest,
        rows=count_text(worker.batch_rows),
        running=count_text(worker.running),
        waiting=count_text(worker.waiting),
        pending=count_text(worker.pending_prefill_tokens),
        kv_share=share,
        kv=percent_text(share),
        kv_blocks=f"{count_text(used)} of {count_text(worker.blocks)} blocks",
        step=duration_text(worker.step_ms),
        rate=rate_text(worker.tokens_per_s),
        preemptions=_preemptions_text(worker),
        age=duration_text(worker.age_ms),
    )


def _preemptions_text(worker: WorkerView) -> str:
    """Since it started, and how often lately."""
    total, per_min = count_text(worker.preemptions), worker.preemptions_per_min
    return f"{total}, {rate_text(per_min)}/min" if per_min else total
